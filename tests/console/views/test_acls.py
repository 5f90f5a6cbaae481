"""ACLs: list, create, delete, and the check of a principal's rights."""

import json

import pytest

from pylog.testing import Broker
from tests.console.served import Served

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ORDERS = {"principal": "User:ann", "permission": "ALLOW", "operation": "READ",
          "resource_type": "TOPIC", "resource_name": "orders-", "pattern_type": "PREFIXED",
          "host": "*"}


@pytest.fixture(scope="module")
def broker():
    with Broker(settings={"authorizer.class.name": STANDARD,
                          "super.users": "User:ANONYMOUS"}) as one:
        yield one


def rows_of(client, query=""):
    return json.loads(client.get(f"/acls?format=json{query}").text)["rows"]


@pytest.fixture
def orders(client):
    client.post("/acls/new", ORDERS)
    return ORDERS


def test_an_acl_is_created_listed_and_deleted(client):
    rule = {**ORDERS, "principal": "User:<b>"}
    assert client.post("/acls/new", rule).status == 303
    assert rows_of(client, "&q=User:%3Cb") == [rule]
    assert "<b>" not in client.get("/acls").text
    query = "&".join(f"{name}={value}" for name, value in rule.items()).replace("<b>", "%3Cb%3E")
    assert "Type the principal" in client.get(f"/acls/delete?{query}").text
    token = client.get("/acls/new").text.split(
        'name="csrf" value="')[1].split('"')[0]
    assert client.send("POST", "/acls/delete", {
        **rule, "csrf": token, "confirm": "User:other"}).status == 200
    assert len(rows_of(client, "&q=User:%3Cb")) == 1
    assert client.send("POST", "/acls/delete", {
        **rule, "csrf": token, "confirm": "User:<b>"}).status == 303
    assert rows_of(client, "&q=User:%3Cb") == []


def test_acls_are_filtered_by_resource_and_permission(client, orders):
    assert rows_of(client, "&resource_type=TOPIC&permission=ALLOW&q=ann")
    assert rows_of(client, "&resource_type=GROUP") == []
    assert client.get("/acls?permission=MAYBE").status == 400


def test_a_producer_gets_all_operations_that_it_needs(client):
    client.post("/acls/new", {**ORDERS, "principal": "User:maker", "operation": "produce"})
    assert sorted(row["operation"] for row in rows_of(client, "&q=maker")) == [
        "CREATE", "DESCRIBE", "WRITE"]


def test_an_existing_acl_is_not_created_twice(client, orders):
    assert "exist already" in client.post("/acls/new", orders).text


@pytest.mark.parametrize("wrong", [
    {"principal": "ann"}, {"resource_type": "PLANET"}, {"operation": "CLUSTER_ACTION"},
    {"operation": "produce", "resource_type": "GROUP"}, {"resource_name": ""},
    {"host": "example.com"}, {"permission": "MAYBE"}])
def test_a_form_that_is_not_valid_is_an_error(client, wrong):
    assert client.post("/acls/new", {**ORDERS, **wrong}).status == 400


@pytest.mark.parametrize(("name", "operation", "answer"), [
    ("orders-eu", "READ", "Allowed"), ("orders-eu", "DESCRIBE", "Allowed"),
    ("orders-eu", "WRITE", "Denied"), ("payments", "READ", "Denied")])
def test_the_check_names_the_deciding_acl(client, orders, name, operation, answer):
    text = client.get(f"/acls/check?principal=User:ann&operation={operation}"
                      f"&resource_type=TOPIC&resource_name={name}&host=10.0.0.1").text
    assert f"<strong>{answer}</strong>" in text
    assert ("orders- (PREFIXED)" in text) == (answer == "Allowed")


def test_a_deny_rule_decides_before_allow_rules(client, orders):
    client.post("/acls/new", {**orders, "permission": "DENY", "resource_name": "orders-secret",
                              "pattern_type": "LITERAL"})
    text = client.get("/acls/check?principal=User:ann&operation=READ&resource_type=TOPIC"
                      "&resource_name=orders-secret").text
    assert "<strong>Denied</strong>" in text and "DENY READ" in text


def test_a_cluster_without_an_authorizer_says_so():
    with Broker() as plain, Served({"test": {"bootstrap.servers": plain.bootstrap}}) as served:
        text = served.client().get("/acls").text
    assert "has no authorizer" in text and "Create an ACL" not in text
