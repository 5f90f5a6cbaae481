"""Login by the cluster's SASL: sessions, rights of each user, throttling, logout."""

import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from pylog.client import Admin
from pylog.client.admin.types import AclBinding
from pylog.console.records.jobs import DONE, Job
from pylog.testing import Broker
from tests.console.served import Served

SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config":
        "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"root\" "
        "password=\"root-password\" user_root=\"root-password\" user_ann=\"ann-password\" "
        "user_bob=\"bob-password\";",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root"}


@pytest.fixture(scope="module")
def broker():
    with Broker(settings=SETTINGS) as one:
        yield one


def cluster(broker, **more):
    return {"bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_PLAINTEXT", **more}


@pytest.fixture(scope="module")
def served(broker):
    admin = Admin(bootstrap_servers=broker.bootstrap, security_protocol="SASL_PLAINTEXT",
                  sasl_mechanism="PLAIN", sasl_username="root", sasl_password="root-password")
    with admin:
        admin.create_topics(["orders-ann", "orders-bob"])
        admin.create_acls([
            AclBinding("TOPIC", f"orders-{user}", "LITERAL", f"User:{user}", "*", "ALL", "ALLOW")
            for user in ("ann", "bob")])
    with Served({"test": cluster(broker)}) as one:
        yield one


@pytest.fixture
def client(served):
    """Return a client. Each test starts a minute later, so that no login is throttled."""
    served.clock.now_s += 61
    return served.client()


def topics(client):
    return [row["topic"] for row in json.loads(client.get("/topics?format=json").text)["rows"]]


def test_a_login_leads_to_the_page_that_was_requested(client):
    response = client.get("/topics?q=orders")
    assert (response.status, response.headers["Location"]) == (
        303, "/login?next=%2Ftopics%3Fq%3Dorders")
    response = client.log_in("ann", "ann-password", response.headers["Location"])
    assert (response.status, response.headers["Location"]) == (303, "/topics?q=orders")
    assert client.get("/topics?q=orders").status == 200


@pytest.mark.parametrize("target", [
    "https://attacker.example/", "//attacker.example/", "/\\attacker.example/", "javascript:x"])
def test_a_login_never_leads_to_another_site(client, target):
    import urllib.parse

    response = client.log_in("ann", "ann-password", "/login?" + urllib.parse.urlencode(
        {"next": target}))
    assert response.headers["Location"] == "/"


def test_two_users_see_what_their_own_acls_allow(served, client):
    client.log_in("ann", "ann-password")
    other = served.client()
    other.log_in("bob", "bob-password")
    assert (topics(client), topics(other)) == (["orders-ann"], ["orders-bob"])
    assert other.get("/topics/orders-ann").status in (403, 404)
    assert "orders-ann" not in other.get("/topics").text


def test_denied_parts_are_hidden_and_denied_changes_name_the_operations(client):
    client.log_in("ann", "ann-password")
    page = client.get("/topics/orders-ann")
    assert page.status == 200 and "could not be read" not in page.text
    response = client.post("/topics/new", {"name": "forbidden"})
    assert response.status == 403 and "CREATE TOPIC" in response.text


def test_a_login_gets_a_new_session_id(served, client):
    """Session fixation: an id from before the login must not become a logged-in one."""
    client.cookies["pylog"] = "chosen-by-an-attacker"
    client.log_in("ann", "ann-password")
    assert client.cookies["pylog"] != "chosen-by-an-attacker"
    first = client.cookies["pylog"]
    client.log_in("ann", "ann-password")
    assert client.cookies["pylog"] != first
    old = served.client()
    old.cookies["pylog"] = first
    assert old.get("/topics").status == 303


def test_wrong_user_and_wrong_password_get_the_same_answer(client):
    answers = set()
    for user, password in (("ann", "wrong"), ("nobody", "wrong")):
        response = client.log_in(user, password)
        answers.add((response.status, re.search(r'role="alert">([^<]+)<', response.text).group(1)))
    assert answers == {(401, "The user or the password is wrong.")}
    assert client.get("/topics").status == 303


def test_a_login_form_without_its_token_is_rejected(client):
    assert client.send("POST", "/login", {"user": "ann", "password": "ann-password"}).status == 403


def test_failed_logins_are_throttled_by_user_and_address(served, client):
    for _ in range(5):
        assert client.log_in("ann", "wrong").status == 401
    assert client.log_in("ann", "ann-password").status == 429
    # By address: another user from here has to wait too.
    assert client.log_in("bob", "bob-password").status == 429
    served.clock.now_s += 61
    assert client.log_in("ann", "ann-password").status == 303


def test_simultaneous_failed_logins_are_throttled_too(served):
    clients = [served.client() for _ in range(12)]
    for one in clients:
        one.get("/login")
    with ThreadPoolExecutor(len(clients)) as pool:
        found = Counter(response.status for response in pool.map(
            lambda one: one.log_in("ann", "wrong"), clients))
    assert found == {401: 5, 429: 7}


def test_logout_ends_the_session_and_its_connections(served, client):
    client.log_in("ann", "ann-password")
    session = next(one for one in served.console.sessions._sessions.values()
                   if one.id == client.cookies["pylog"])
    cluster_session = session.clusters["test"]
    kept = dict(client.cookies)
    assert client.post("/logout").status == 303
    assert "pylog" not in client.cookies
    assert cluster_session.admin.cluster.closed
    client.cookies = kept
    assert client.get("/topics").status == 303


def test_logout_names_the_jobs_that_continue(served, client):
    client.log_in("ann", "ann-password")
    job = served.console.jobs._jobs["x"] = Job("x", "Copy a to b", "ann", "test", 1, 0, 0.0)
    client.post("/logout")
    assert "Copy a to b" in client.get("/login").text
    job.state = DONE
    client.log_in("ann", "ann-password")
    client.post("/logout")
    assert "Copy a to b" not in client.get("/login").text
    del served.console.jobs._jobs["x"]


def test_sessions_end_after_idle_and_after_absolute_time(served, client):
    client.log_in("ann", "ann-password")
    served.clock.now_s += 29 * 60
    assert client.get("/about").status == 200
    served.clock.now_s += 31 * 60
    assert client.get("/about").status == 303
    client.log_in("ann", "ann-password")
    for _ in range(13 * 3):
        served.clock.now_s += 20 * 60
        status = client.get("/about").status
    assert status == 303


def test_a_user_has_at_most_twenty_sessions(served, client):
    clients = []
    for _ in range(21):
        clients.append(served.client())
        assert clients[-1].log_in("bob", "bob-password").status == 303
    statuses = [one.get("/about").status for one in clients]
    assert statuses[-20:] == [200] * 20 and statuses[0] == 303


def test_users_see_only_their_own_audit_lines(served, client):
    client.log_in("bob", "bob-password")
    client.post("/logout")
    client.log_in("ann", "ann-password")
    rows = json.loads(client.get("/audit?format=json").text)["rows"]
    principals = {row["principal"] for row in rows}
    assert principals == {"User:ann"}


def test_logins_are_audited_without_passwords_and_session_ids(served, client):
    served.console.audit.lines.clear()
    client.log_in("ann", "wrong-password")
    client.log_in("ann", "ann-password")
    client.post("/logout")
    lines = list(served.console.audit.lines)
    assert [(line["operation"], line["principal"], line["outcome"]) for line in lines] == [
        ("login", "User:ann", "status 401"), ("login", "User:ann", "done"),
        ("logout", "User:ann", "done")]
    text = json.dumps(lines)
    assert "password" not in text and all(
        cookie not in text for cookie in client.cookies.values())


def test_an_unreachable_cluster_is_not_reported_as_a_wrong_password(broker):
    settings = {**cluster(broker), "bootstrap.servers": "127.0.0.1:1",
                "default.api.timeout.ms": 2000}
    with Served({"dead": settings}) as one:
        response = one.client().log_in("ann", "ann-password")
    assert response.status == 502 and "cannot be reached" in response.text


def test_no_object_that_is_logged_shows_the_password(served, client):
    client.log_in("ann", "ann-password")
    for session in served.console.sessions._sessions.values():
        assert "ann-password" not in repr([session, session.clusters])
    assert "ann-password" not in repr(served.console.clusters)
