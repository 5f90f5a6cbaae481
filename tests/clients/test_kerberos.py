"""Clients that authenticate by Kerberos with a real KDC: ours, kcat, Java's tools."""

import shutil

import pytest

from pylog.testing.ports import free_port
from tests.clients import round_trips
from tests.fixtures.brokers import Brokerd
from tests.security.kdc import REALM, Realm
from tests.wire.talk import unique

pytestmark = pytest.mark.slow
MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
LINES = "".join(f"{number:04d}\n" for number in range(50))


@pytest.fixture(scope="module")
def realm(tmp_path_factory):
    with Realm(tmp_path_factory.mktemp("kdc")) as made:
        yield made


@pytest.fixture(scope="module")
def alice(realm):
    return realm.keytab("alice")


@pytest.fixture(scope="module")
def broker(realm, tmp_path_factory):
    keytab, port = realm.keytab("kafka/localhost"), free_port()
    with Brokerd(tmp_path_factory.mktemp("kerberos"), {
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
            # Tickets are issued for host names.
            "advertised.listeners": f"SASL_PLAINTEXT://localhost:{port}",
            "auto.create.topics.enable": "true",
            "sasl.enabled.mechanisms": "GSSAPI",
            "listener.name.sasl_plaintext.gssapi.sasl.jaas.config":
                f'{MODULE} useKeyTab=true storeKey=true keyTab="{keytab}" '
                f'principal="kafka/localhost@{REALM}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:alice"}, environment=realm.environment) as made:
        yield made


@pytest.fixture(autouse=True)
def of_the_realm(monkeypatch, realm):
    for name, value in realm.environment.items():
        monkeypatch.setenv(name, value)


def settings(broker, **more):
    return {"bootstrap.servers": f"localhost:{broker.port}",
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", **more}


def there_and_back(given: dict, topic: str) -> list:
    from pylog.client import Consumer, Producer

    with Producer(given) as producer:
        for line in LINES.splitlines():
            producer.send(topic, line.encode())
        producer.flush()
    with Consumer({**given, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        got: list = []
        while len(got) < len(LINES.splitlines()):
            got += [record.value.decode() for record in consumer.poll(1.0)]
    return got


def test_our_client_logs_in_with_a_keytab(broker, alice):
    given = settings(broker, **{"sasl.kerberos.keytab": alice,
                                "sasl.kerberos.principal": f"alice@{REALM}"})
    assert there_and_back(given, unique("kerberos-keytab")) == LINES.splitlines()


def test_our_client_logs_in_with_tickets_of_kinit(broker, realm, alice):
    realm.kinit("alice", alice)
    assert there_and_back(settings(broker), unique("kerberos-kinit")) == LINES.splitlines()


def test_principal_without_acls_is_denied_by_name(broker, realm):
    from pylog.client import Admin, errors

    given = settings(broker, **{"sasl.kerberos.keytab": realm.keytab("bob"),
                                "sasl.kerberos.principal": f"bob@{REALM}"})
    with Admin(given) as admin, pytest.raises(errors.KafkaError, match="(?i)authoriz"):
        admin.create_topics([unique("kerberos-bob")])


def test_ticket_for_another_service_is_rejected(broker, realm, alice):
    from pylog.client import Admin, errors

    realm.keytab("other/localhost")
    given = settings(broker, **{
        "sasl.kerberos.keytab": alice, "sasl.kerberos.principal": f"alice@{REALM}",
        "sasl.kerberos.service.name": "other", "default.api.timeout.ms": 3000})
    with pytest.raises(errors.KafkaError, match="(?i)authentication|credentials"), \
            Admin(given) as admin:
        admin.list_topics()


def test_kcat_logs_in_with_tickets_of_kinit(broker, realm, alice):
    if shutil.which("kcat") is None:
        pytest.skip("apt install kcat")
    realm.kinit("alice", alice)
    given = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "GSSAPI",
             "sasl.kerberos.kinit.cmd": "true", "sasl.kerberos.service.name": "kafka"}
    assert round_trips.kcat(f"localhost:{broker.port}", given, unique("kerberos-kcat"),
                            LINES) == LINES


@pytest.mark.kafka
def test_java_tools_log_in_with_a_keytab(broker, realm, alice, tmp_path):
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\n"
        "sasl.kerberos.service.name=kafka\n"
        f'sasl.jaas.config={MODULE} useKeyTab=true storeKey=true keyTab="{alice}" '
        f'principal="alice@{REALM}";\n')
    got = round_trips.java_tools(
        f"localhost:{broker.port}", config, unique("kerberos-java"), LINES,
        jvm_options=(f"-Djava.security.krb5.conf={realm.root}/krb5.conf",))
    assert got == LINES
