"""Kafka clients that authenticate with a password, each with its own settings: PLAIN and SCRAM."""

import shutil

import pytest

from pylog.client import Admin
from pylog.client.admin.types import ScramUpsertion
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.clients import round_trips
from tests.wire.talk import unique

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PASSWORD = "p=ss,w rd"
VALUES = [b"%04d" % number for number in range(100)]
LINES = "".join(f"{number}\n" for number in range(500))
MODULES = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def address():
    """The address of a broker that requires authentication."""
    plain, asking = free_port(), free_port()
    jaas = f'{MODULES}.plain.PlainLoginModule required user_alice="{PASSWORD}";'
    with Broker(settings={
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{asking}",
            "auto.create.topics.enable": "true", "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas}):
        with Admin(bootstrap_servers=f"127.0.0.1:{plain}") as admin:
            admin.alter_user_scram_credentials([
                ScramUpsertion("alice", PASSWORD, mechanism) for mechanism in MECHANISMS[1:]])
        yield f"127.0.0.1:{asking}"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in_with_a_password(address, mechanism):
    settings = {"bootstrap.servers": address, "security.protocol": "sasl_plaintext",
                "sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": PASSWORD}
    assert round_trips.librdkafka(settings, unique("sasl-librdkafka"), VALUES) == VALUES


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_logs_in_with_a_password(address):
    """By PLAIN: the librdkafka that Debian's kcat contains has a wrong SCRAM, which Kafka 4.3
    rejects too.
    """
    settings = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN",
                "sasl.username": "alice", "sasl.password": PASSWORD}
    assert round_trips.kcat(address, settings, unique("sasl-kcat"), LINES) == LINES


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", [round_trips.kafka_python, round_trips.aiokafka])
def test_python_clients_log_in_with_a_password(address, client, mechanism):
    settings = {"bootstrap_servers": address, "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": mechanism, "sasl_plain_username": "alice",
                "sasl_plain_password": PASSWORD}
    assert client(settings, unique("sasl-python"), VALUES) == VALUES


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java_tools_log_in_by_their_command_config(address, tmp_path, mechanism):
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    config = tmp_path / "client.properties"
    config.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={MODULES}.{module} required "
        f'username="alice" password="{PASSWORD}";\n')
    assert round_trips.java_tools(address, config, unique("sasl-java"), LINES) == LINES
