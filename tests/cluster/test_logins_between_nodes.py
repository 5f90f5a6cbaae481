"""Three brokerds that authenticate to each other with OAuth tokens or Kerberos tickets.

Brokers, controllers and followers, across the expiry of logins.
"""

import json
import time
from contextlib import contextmanager

import pytest

from pylog.client import Admin, NewTopic, Producer
from tests.cluster.test_secured_cluster import in_sync, states
from tests.fixtures.clusters import Cluster, files_of, until
from tests.security.issuer import Issuer, served
from tests.security.kdc import REALM, Realm

PROTOCOL = "SASL_PLAINTEXT"
NODES = (1, 2, 3)
LIFE_S = 4
MODULE = "x.LoginModule required"
SHARED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node;User:kafka;User:admin"}


def shared(mechanism: str, jaas: str) -> dict:
    return {**SHARED, "sasl.enabled.mechanisms": mechanism,
            "sasl.mechanism.inter.broker.protocol": mechanism,
            "sasl.mechanism.controller.protocol": mechanism,
            f"listener.name.{PROTOCOL.lower()}.{mechanism.lower()}.sasl.jaas.config": jaas,
            f"listener.name.controller.{mechanism.lower()}.sasl.jaas.config": jaas}


@contextmanager
def by_token(root):
    """Yield (cluster, admin client's settings, function that returns the number of issued tokens).
    """
    issuer = Issuer()
    clients = {"node": "of nodes", "admin": "of all"}
    with served(issuer, clients, lasts_s=LIFE_S) as server:
        keys = root / "keys.json"
        keys.write_text(json.dumps(json.loads(issuer.published)))
        found = Cluster(root, protocol=PROTOCOL, settings={
            **shared("OAUTHBEARER", f'{MODULE} clientId=node clientSecret="of nodes";'),
            "sasl.oauthbearer.token.endpoint.url": f"{server.url}/token",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.allow.unverified.audience": "true",
            "sasl.oauthbearer.expected.issuer": issuer.name,
            "sasl.oauthbearer.clock.skew.seconds": 0})
        yield found, {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"{server.url}/token",
            "sasl.oauthbearer.client.credentials.client.id": "admin",
            "sasl.oauthbearer.client.credentials.client.secret": clients["admin"]}, \
            lambda: len(server.asked)


@contextmanager
def by_ticket(root):
    """The same with tickets, counted in the KDC's log."""
    with Realm(root) as realm:
        hosts = [f"kafka/127.0.0.{number}@{REALM}" for number in NODES]
        keytab, admins = realm.keytab(*hosts), realm.keytab("admin")
        found = Cluster(root, protocol=PROTOCOL, settings={
            **shared("GSSAPI", ""), "sasl.kerberos.service.name": "kafka",
            "connections.max.reauth.ms": 1000 * LIFE_S})
        for number, broker in found.brokers.items():
            broker.environment = realm.environment
            for listener, host in ((PROTOCOL.lower(), hosts[0]), ("controller", hosts[number - 1])):
                broker.overrides[f"listener.name.{listener}.gssapi.sasl.jaas.config"] = \
                    f'{MODULE} useKeyTab=true storeKey=true keyTab="{keytab}" principal="{host}";'
        with pytest.MonkeyPatch.context() as patched:
            for name, value in realm.environment.items():
                patched.setenv(name, value)
            yield found, {
                "sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": admins,
                "sasl.kerberos.principal": f"admin@{REALM}"}, \
                lambda: (root / "kdc.log").read_text().count("TGS_REQ")


@pytest.mark.parametrize("way", [
    by_token, pytest.param(by_ticket, marks=pytest.mark.slow)], ids=["token", "ticket"])
def test_nodes_stay_authenticated_while_logins_expire_and_a_node_dies(way, tmp_path):
    with way(tmp_path) as (made, account, shown), made as cluster:
        given = {"bootstrap.servers": cluster.bootstrap, "security.protocol": PROTOCOL, **account}
        with Admin(given) as admin, Producer({**given, "acks": "all"}) as producer:
            until(lambda: len(admin.describe_cluster().nodes) == len(NODES))
            admin.create_topics([NewTopic("orders", 3, 3)])
            in_sync(cluster, admin, "orders")
            before, end_s = shown(), time.monotonic() + 2.5 * LIFE_S
            sent = sending(producer, lambda: time.monotonic() < end_s)
            cluster.brokers[states(admin, "orders")[0][0]].kill()
            sent += sending(producer, iter([True] * 30 + [False]).__next__)
            for number, broker in cluster.brokers.items():
                if not broker.alive():
                    cluster.start_broker(number)
            in_sync(cluster, admin, "orders")
            assert shown() > before
        for index in range(3):
            until(lambda at=index: len({files_of(broker, "orders", at)
                                        for broker in cluster.brokers.values()}) == 1, 20)
        assert sent > 60
        assert [broker.alarms() for broker in cluster.brokers.values()] == [[], [], []]


def sending(producer, more) -> int:
    """Send records with acks=all one after the other; return how many were acknowledged."""
    sent = 0
    while more():
        producer.send("orders", b"%d" % sent, partition=sent % 3).result(60)
        sent += 1
        time.sleep(0.02)
    return sent
