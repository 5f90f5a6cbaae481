"""Kafka clients that log in by name and password, each by its own settings: PLAIN and SCRAM."""

import asyncio
import shutil
import subprocess
import time

import pytest

from pylog.client import Admin
from pylog.client.descriptions import ScramUpsertion
from pylog.testing import Broker
from pylog.testing.disturbances import free_port
from tests.wire.talk import unique

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PASSWORD = "p=ss,w rd"
VALUES = [b"%04d" % number for number in range(100)]
MODULES = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def address():
    """Of a broker that wants a login."""
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
def test_librdkafka(address, mechanism):
    from confluent_kafka import Consumer, Producer

    settings = {"bootstrap.servers": address, "security.protocol": "sasl_plaintext",
                "sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": PASSWORD}
    topic = unique("sasl-librdkafka")
    producer = Producer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got, end_s = [], time.monotonic() + 60
    while len(got) < len(VALUES) and time.monotonic() < end_s:
        got += [message.value() for message in consumer.consume(100, 1.0)]
    consumer.close()
    assert got == VALUES


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat(address):
    """By PLAIN: SCRAM of the librdkafka that it mostly comes with is wrong, and Kafka 4.3 refuses
    it too."""
    mechanism = "PLAIN"
    topic = unique("sasl-kcat")
    command = ["kcat", "-b", address, "-X", "security.protocol=sasl_plaintext",
               "-X", f"sasl.mechanism={mechanism}", "-X", "sasl.username=alice",
               "-X", f"sasl.password={PASSWORD}", "-t", topic]
    lines = "".join(f"{number}\n" for number in range(200))
    subprocess.run([*command, "-P"], input=lines, text=True, check=True, timeout=60)
    done = subprocess.run([*command, "-C", "-e", "-q"], capture_output=True, text=True, timeout=60)
    assert done.stdout == lines


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(address, mechanism):
    from kafka import KafkaConsumer, KafkaProducer

    settings = {"bootstrap_servers": address, "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": mechanism, "sasl_plain_username": "alice",
                "sasl_plain_password": PASSWORD}
    topic = unique("sasl-kafka-python")
    producer = KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value)
    producer.close(60)
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000,
                             **settings)
    got = []
    for record in consumer:
        got.append(record.value)
        if len(got) == len(VALUES):
            break
    consumer.close()
    assert got == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(address, mechanism):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    settings = {"bootstrap_servers": address, "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": mechanism, "sasl_plain_username": "alice",
                "sasl_plain_password": PASSWORD}
    topic = unique("sasl-aiokafka")

    async def through() -> list[bytes]:
        async with AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send(topic, value)
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(through(), 60)) == VALUES


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_javas_tools_by_their_command_config(address, tmp_path, mechanism):
    from bench.kafka import run_tool

    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    config = tmp_path / "client.properties"
    config.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={MODULES}.{module} required "
        f'username="alice" password="{PASSWORD}";\n')
    topic = unique("sasl-java")

    def tool(name: str, *arguments, **options) -> str:
        done = run_tool(f"org.apache.kafka.tools.{name}", "--bootstrap-server", address,
                        "--command-config", config, *arguments, wait_s=120, heap="256m",
                        **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tool("TopicCommand", "--create", "--topic", topic)
    lines = "".join(f"{number}\n" for number in range(500))
    tool("ConsoleProducer", "--topic", topic, input=lines)
    assert tool("consumer.ConsoleConsumer", "--topic", topic, "--from-beginning",
                "--max-messages", 500) == lines
