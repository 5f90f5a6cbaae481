"""Logins with the cluster's users, and rights by its ACLs."""

import json
import time

import pytest

from pylog.client import Admin
from pylog.client.admin.types import AclBinding
from pylog.config.errors import ConfigError
from pylog.registry.access import topic_of
from pylog.testing import Broker
from tests.registry.served import WAIT_S, Served, code, record

PASSWORD = "secret"
USERS = ("root", "reader", "writer", "owner", "other", "newcomer")


def login(name):
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": name, "sasl.password": PASSWORD}


def rule(name, operation, kind="TOPIC", resource="orders", pattern="LITERAL"):
    return AclBinding(kind, resource, pattern, f"User:{name}", "*", operation, "ALLOW")


RULES = [
    rule("reader", "READ"), rule("writer", "READ"), rule("writer", "WRITE"),
    rule("writer", "READ", resource="base"),
    *[rule("owner", operation, resource=name) for name in ("orders", "base") for operation in (
        "READ", "WRITE", "DELETE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")],
    rule("owner", "DESCRIBE_CONFIGS", "CLUSTER", "kafka-cluster"),
    rule("owner", "ALTER_CONFIGS", "CLUSTER", "kafka-cluster")]


@pytest.fixture(scope="module")
def secured():
    entries = " ".join(f'user_{name}="{PASSWORD}"' for name in USERS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    with Broker(settings={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0", "super.users": "User:root",
            "sasl.enabled.mechanisms": "PLAIN",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config":
                f'{module} required username="root" password="{PASSWORD}" {entries};',
            "authorizer.class.name":
                "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}) as one:
        yield {"bootstrap.servers": one.bootstrap, **login("root")}


@pytest.fixture(scope="module")
def audit_file(tmp_path_factory):
    return tmp_path_factory.mktemp("registry") / "audit.log"


@pytest.fixture(scope="module")
def served(secured, audit_file):
    with Admin(secured) as admin:
        admin.create_acls(RULES)
    with Served(secured, authentication="basic", authorization="acl", super_users="User:root",
                audit_file=audit_file) as one:
        root = one.client("root", PASSWORD)
        root.register("base-value", {"type": "fixed", "name": "F", "size": 1})
        root.register("orders-value", record("R", "a"))
        root.put("/config/orders-value", {"compatibility": "NONE"})
        root.put("/mode/orders-value", {"mode": "READWRITE"})
        yield one


NOBODY, HIDDEN, REFUSED = 401, 404, 403
BODY = {"schema": json.dumps(record("R", "a"))}
CHANGED = {"schema": json.dumps(record("R", "a", ("b", "int", 1)))}
# Route, body, and the status for each user.
MATRIX = [
    ("GET", "/subjects/orders-value/versions", None, 200, 200, 200, HIDDEN),
    ("GET", "/subjects/orders-value/versions/1", None, 200, 200, 200, HIDDEN),
    ("GET", "/subjects/orders-value/versions/1/schema", None, 200, 200, 200, HIDDEN),
    ("GET", "/subjects/orders-value/versions/1/referencedby", None, 200, 200, 200, HIDDEN),
    ("POST", "/subjects/orders-value", BODY, 200, 200, 200, HIDDEN),
    ("GET", "/schemas/ids/2", None, 200, 200, 200, HIDDEN),
    ("GET", "/schemas/ids/2/versions", None, 200, 200, 200, HIDDEN),
    ("POST", "/compatibility/subjects/orders-value/versions/1", BODY, 200, 200, 200, HIDDEN),
    ("POST", "/subjects/orders-value/versions", CHANGED, REFUSED, 200, 200, HIDDEN),
    ("DELETE", "/subjects/orders-value/versions/9", None, REFUSED, REFUSED, 404, HIDDEN),
    ("DELETE", "/subjects/orders-value?permanent=true", None, REFUSED, REFUSED, 404, HIDDEN),
    ("GET", "/config/orders-value", None, REFUSED, REFUSED, 200, HIDDEN),
    ("PUT", "/config/orders-value", {"compatibility": "NONE"}, REFUSED, REFUSED, 200, HIDDEN),
    ("GET", "/mode/orders-value", None, REFUSED, REFUSED, 200, HIDDEN),
    ("PUT", "/mode/orders-value", {"mode": "READWRITE"}, REFUSED, REFUSED, 200, HIDDEN),
    ("GET", "/config", None, REFUSED, REFUSED, 200, REFUSED),
    ("PUT", "/config", {"compatibility": "BACKWARD"}, REFUSED, REFUSED, 200, REFUSED),
    ("GET", "/mode", None, REFUSED, REFUSED, 200, REFUSED),
    ("DELETE", "/contexts/.absent", None, REFUSED, REFUSED, 204, REFUSED)]


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: f"{row[0]} {row[1]}")
def test_each_route_needs_its_right(served, row):
    method, path, body, *expected = row
    found = [served.client(name, PASSWORD).send(method, path, body)[0]
             for name in ("reader", "writer", "owner", "other")]
    assert found == expected
    assert served.client().send(method, path, body)[0] == NOBODY


def test_a_hidden_subject_is_answered_like_an_absent_one(served):
    client = served.client("other", PASSWORD)
    hidden = client.get("/subjects/orders-value/versions")
    absent = client.get("/subjects/absent/versions")
    assert hidden[0] == absent[0] == 404
    assert hidden[1]["message"].replace("orders-value", "absent") == absent[1]["message"]


def test_lists_contain_only_what_the_user_sees(served):
    assert served.client("other", PASSWORD).get("/subjects") == (200, [])
    assert served.client("other", PASSWORD).get("/schemas") == (200, [])
    assert served.client("reader", PASSWORD).get("/subjects") == (200, ["orders-value"])
    assert served.client("writer", PASSWORD).get("/subjects") == (
        200, ["base-value", "orders-value"])


def test_a_reference_needs_the_right_to_read_it(served):
    body = {"schema": json.dumps(record("R", ("a", "F"))),
            "references": [{"name": "F", "subject": "hidden-value", "version": 1}]}
    served.client("root", PASSWORD).register(
        "hidden-value", {"type": "fixed", "name": "F", "size": 1})
    assert code(served.client("writer", PASSWORD).post(
        "/subjects/orders-value/versions", body)) == (422, 42201)
    for path in ("/subjects/orders-value/versions", "/subjects/orders-value",
                 "/subjects/orders-key",
                 "/compatibility/subjects/orders-value/versions",
                 "/compatibility/subjects/orders-value/versions?verbose=true"):
        hidden, absent = (served.client("writer", PASSWORD).post(path, {
            **body, "references": [{"name": "F", "subject": name, "version": 1}]})
            for name in ("hidden-value", "absent-value"))
        assert (hidden[0], json.dumps(hidden[1]).replace("hidden", "absent")) == (
            absent[0], json.dumps(absent[1])), path
    assert served.client("root", PASSWORD).post(
        "/subjects/orders-value/versions", body)[0] == 200


@pytest.mark.parametrize("header", [
    "", "Basic", "Basic !!", "Basic cm9vdA==", "Bearer x", "Basic OnNlY3JldA=="])
def test_requests_without_valid_credentials_are_refused(served, header):
    client = served.client()
    assert code(client.get("/subjects", Authorization=header)) == (401, 40101)
    assert client.last.headers["WWW-Authenticate"].startswith("Basic ")


def test_a_wrong_password_is_refused_again_and_the_right_one_accepted(served):
    for _ in range(2):
        assert code(served.client("reader", "wrong").get("/subjects")) == (401, 40101)
        assert served.client("reader", PASSWORD).get("/subjects")[0] == 200


def test_changes_of_acls_take_effect(served, secured):
    client = served.client("newcomer", PASSWORD)
    assert client.get("/subjects/late-value/versions")[0] == 404
    served.client("root", PASSWORD).register("late-value", '"string"')
    with Admin(secured) as admin:
        admin.create_acls([rule("newcomer", "DESCRIBE", resource="late")])
    end_s = time.monotonic() + WAIT_S
    while client.get("/subjects/late-value/versions")[0] != 200:
        assert time.monotonic() < end_s
        time.sleep(0.1)


def test_changes_and_refusals_are_in_the_audit_log(served, audit_file):
    served.client("root", PASSWORD).register("audited-value", '"string"')
    served.client("reader", PASSWORD).send("DELETE", "/subjects/orders-value")
    wanted = [("User:root", "POST", "/subjects/audited-value/versions", True),
              ("User:reader", "DELETE", "/subjects/orders-value", False)]
    end_s = time.monotonic() + WAIT_S
    while True:
        lines = [json.loads(line) for line in audit_file.read_text().splitlines()]
        found = [(row["principal"], row["operation"], row["resource"], row["allowed"])
                 for row in lines]
        if all(one in found for one in wanted):
            break
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert PASSWORD not in audit_file.read_text()


@pytest.mark.parametrize("settings, message", [
    ({"authentication": "basic"}, "does not use SASL"),
    ({"authorization": "acl"}, "needs users"), ({"listener": "nonsense"}, "expected host:port")])
def test_settings_that_cannot_protect_the_registry_are_refused(registry_broker, settings, message):
    with pytest.raises(ConfigError, match=message):
        with Served({"bootstrap.servers": registry_broker.bootstrap}, **settings):
            pass


def test_an_open_registry_on_another_address_logs_a_warning(registry_broker, topic, caplog):
    with Served({"bootstrap.servers": registry_broker.bootstrap}, topic=topic,
                listener="0.0.0.0:0"):
        pass
    assert "everyone who reaches the schema registry" in caplog.text


@pytest.mark.parametrize("subject, topic", [
    ("orders-value", "orders"), ("orders-key", "orders"), ("com.shop.Order", "com.shop.Order"),
    ("-value", "-value"), (":.ctx:orders-value", "orders")])
def test_subjects_are_mapped_to_topics(subject, topic):
    assert topic_of(subject) == topic
