"""TLS and SASL against Apache Kafka."""

import asyncio
import hashlib
import subprocess
import time

import pytest

from pylog.client import Admin, Consumer, NewTopic, Producer, TopicPartition, errors
from pylog.client.config.settings import Settings
from pylog.client.network.cluster import Cluster
from pylog.protocol import messages
from pylog.testing.ports import free_port
from tests.client.support import collect, new_name

pytestmark = pytest.mark.kafka
NAME, PASSWORD = "me,=too", "s3cret"
SCRAM = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return (certificate and key in one PEM file, certificate only)."""
    root = tmp_path_factory.mktemp("tls")
    key, cert, both = root / "key.pem", root / "cert.pem", root / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True)
    both.write_text(key.read_text() + cert.read_text())
    return both, cert


@pytest.fixture(scope="module")
def secured(tmp_path_factory, certificate):
    """A Kafka with SASL on one listener, and with TLS and SASL on another."""
    from bench.kafka import KafkaBroker

    plain, tls, controller = free_port(), free_port(), free_port()
    jaas = ('org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" '
            f'password="admin" user_admin="admin" user_{"plain"}="{PASSWORD}";')
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    overrides = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SECURE://127.0.0.1:{tls},"
                     f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SECURE://127.0.0.1:{tls}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map":
            "PLAINTEXT:SASL_PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate[0]),
    }
    for listener in ("plaintext", "secure"):
        overrides[f"listener.name.{listener}.plain.sasl.jaas.config"] = jaas
        for mechanism in SCRAM:
            name = f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"
            overrides[name] = scram
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka") / "data", plain, overrides)
    with broker:
        asyncio.run(add_scram_users(broker.bootstrap))
        yield broker.bootstrap, f"127.0.0.1:{tls}"


async def add_scram_users(bootstrap: str) -> None:
    request = messages.AlterUserScramCredentialsRequest
    settings = Settings("admin", bootstrap_servers=bootstrap, security_protocol="SASL_PLAINTEXT",
                        sasl_username="plain", sasl_password=PASSWORD)
    async with Cluster(settings) as cluster:
        await cluster.refresh()
        for number, hash_name in SCRAM.values():
            salted = hashlib.pbkdf2_hmac(hash_name, PASSWORD.encode(), b"salt", 4096)
            answer = await cluster.send(await cluster.controller(), request(upsertions=[
                request.ScramCredentialUpsertion(name=NAME, mechanism=number, iterations=4096,
                                                 salt=b"salt", salted_password=salted)]))
            assert answer.results[0].error_code == 0, answer


def ask(bootstrap, **settings):
    with Admin(bootstrap_servers=bootstrap, default_api_timeout_ms=10_000, **settings) as admin:
        return admin.describe_cluster().cluster_id


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
@pytest.mark.parametrize("tls", [False, True])
def test_the_right_password_opens_the_door(secured, certificate, mechanism, tls):
    settings = {"sasl_mechanism": mechanism, "sasl_password": PASSWORD,
                "sasl_username": "plain" if mechanism == "PLAIN" else NAME}
    if tls:
        settings |= {"security_protocol": "SASL_SSL", "ssl_ca_location": certificate[1]}
    else:
        settings["security_protocol"] = "SASL_PLAINTEXT"
    for left in (20, 0):  # A new SCRAM user reaches the broker after a moment.
        try:
            assert ask(secured[tls], **settings)
            break
        except errors.AuthenticationError:
            if not left:
                raise
            time.sleep(1)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_wrong_password_fails_at_once_and_is_not_shown(secured, mechanism):
    with pytest.raises(errors.AuthenticationError) as caught:
        ask(secured[0], security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
            sasl_username="plain", sasl_password="wr0ng-one")
    assert caught.value.fatal and "wr0ng-one" not in str(caught.value)


def test_untrusted_certificate_is_rejected(secured):
    with pytest.raises(errors.AuthenticationError, match="certificate"):
        ask(secured[1], security_protocol="SASL_SSL", sasl_username="plain",
            sasl_password=PASSWORD)


def test_large_batches_arrive_complete_over_tls(secured, certificate):
    topic, values = new_name("tls"), [b"%06d" % number * 100 for number in range(6000)]
    settings = {"security_protocol": "SASL_SSL", "ssl_ca_location": certificate[1],
                "sasl_mechanism": "PLAIN", "sasl_username": "plain", "sasl_password": PASSWORD,
                "bootstrap_servers": secured[1]}
    with Admin(**settings) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1)])
    with Producer(**settings) as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush(60)
    with Consumer(auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [one.value for one in collect(consumer, len(values))] == values
