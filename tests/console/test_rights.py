"""Two users with different ACLs on every route: forbidden names and contents are never shown."""

import pytest

from pylog.client import Admin, Consumer, Producer
from pylog.client.admin.types import AclBinding, QuotaAlteration, ScramUpsertion
from pylog.client.types import TopicPartition
from pylog.console.views import all_pages
from pylog.testing import Broker
from tests.console.routes import OTHERS, paths_of
from tests.console.served import WAIT_S, Served
from tests.console.views import test_login

TOPIC, GROUP, CLIENT = "secret-orders", "secret-group", "secret-client"
VALUE, KEY, HEADER = "secret-value", "secret-key", "secret-header"
TRANSACTION = "secret-transaction"
SCRAM, QUOTA, PRINCIPAL = "secret-scram", "secret-quota", "secret-principal"
NAMES = {"topic": TOPIC, "group": GROUP, "partition": "0", "offset": "0", "part": "value",
         "broker": "1", "job": "1", "user": SCRAM, "subject": "s-value", "version": "1",
         "hash": "x", "name": "y", "id": TRANSACTION}
SECRETS = (TOPIC, GROUP, CLIENT, VALUE, KEY, HEADER, SCRAM, QUOTA, PRINCIPAL, TRANSACTION)
FILES = [path for path in OTHERS if "{hash}" not in path and path != "/healthz"]


def root(broker):
    return test_login.cluster(broker, **{
        "sasl.mechanism": "PLAIN", "sasl.username": "root", "sasl.password": "root-password"})


@pytest.fixture(scope="module")
def broker():
    with Broker(settings={**test_login.SETTINGS, "node.id": "1"}) as one:
        with Admin(root(one)) as admin:
            admin.create_topics([TOPIC])
            admin.create_acls([
                AclBinding("TOPIC", TOPIC, "LITERAL", f"User:{PRINCIPAL}", "*", "READ", "ALLOW"),
                *[AclBinding(kind, "*" if kind != "CLUSTER" else "kafka-cluster", "LITERAL",
                             "User:ann", "*", "ALL", "ALLOW")
                  for kind in ("TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID")]])
            admin.alter_user_scram_credentials([
                ScramUpsertion(SCRAM, "password", "SCRAM-SHA-512", 4096)])
            admin.alter_client_quotas([QuotaAlteration(
                {"client-id": QUOTA}, {"producer_byte_rate": 1e9})])
            with Producer(root(one)) as producer:
                producer.send(TOPIC, VALUE.encode(), KEY.encode(), headers=[(HEADER, b"x")])
            with Producer({**root(one), "transactional.id": TRANSACTION}) as producer:
                with producer.transaction():
                    producer.send(TOPIC, b"x")
            admin.alter_consumer_group_offsets(GROUP, {TopicPartition(TOPIC, 0): 0})
            with Consumer({**root(one), "group.id": GROUP, "client.id": CLIENT,
                           "auto.offset.reset": "earliest"}) as consumer:
                consumer.subscribe([TOPIC])
                assert consumer.poll(WAIT_S)
                yield one


@pytest.fixture(scope="module")
def served(broker):
    """Serve a console that samples lags with the rights of root."""
    with Served({"test": root(broker)}, console_auth="sasl", console_lag_interval_ms=500) as one:
        yield one


@pytest.fixture(scope="module")
def ann(served):
    """Return a client with all rights, which has started a job."""
    client = served.client()
    assert client.log_in("ann", "ann-password").status == 303
    assert client.post("/topics/new", {"name": "secret-copy", "partitions": "1"}).status == 303
    form = {"step": "start", "target": "secret-copy", "left": "0:0-1"}
    assert client.post(f"/topics/{TOPIC}/copy", form).status == 303
    return client


@pytest.fixture(scope="module")
def bob(served):
    """Return a client without any rights."""
    client = served.client()
    assert client.log_in("bob", "bob-password").status == 303
    return client


def requested(path):
    """Return the names that a path itself contains: an error page may repeat them."""
    return {name for name in SECRETS if name in path}


def test_every_route_hides_the_names_of_others(served, ann, bob):
    shown = {}
    # The audit page before the others, and without earlier lines: it repeats this user's requests.
    lines = served.console.audit.lines
    for line in [line for line in lines if line["principal"] == "User:bob"]:
        lines.remove(line)
    for path, route in sorted(paths_of(all_pages(), NAMES).items(), key=lambda row: "{" in row[1]):
        response = bob.get(path)
        names = {name for name in SECRETS if name in response.text} - requested(path)
        if names or response.status >= 500:
            shown[route] = response.status, names
    assert shown == {}


def test_the_same_routes_show_these_names_to_a_user_with_rights(ann):
    """Otherwise the test above could not fail."""
    shown = set()
    for path in paths_of(all_pages(), NAMES):
        text = ann.get(path).text
        shown |= {name for name in SECRETS if name in text} - requested(path)
    assert shown == {*SECRETS}


@pytest.mark.parametrize("route", FILES)
def test_streams_and_files_are_denied_too(ann, bob, route):
    path = route.format(**NAMES)
    for query in ("", "?tail=1") if route.endswith("records/stream") else ("",):
        response = bob.get(path + query)
        assert response.status in (403, 404) or "event: error" in response.text, path
        assert not {name for name in SECRETS if name in response.text} - requested(path)
