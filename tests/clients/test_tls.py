"""Every Kafka client over TLS with its own settings, showing a certificate where one is asked for.
"""

import asyncio
import shutil
import ssl
import subprocess
import time

import pytest

from pylog.testing import Broker
from pylog.testing.certificates import write
from tests.wire.talk import unique

VALUES = [b"%04d" % number * 300 for number in range(200)]


@pytest.fixture(scope="module", params=["tls", "mutual"])
def broker(request):
    with Broker(tls="mutual" if request.param == "mutual" else True,
                settings={"auto.create.topics.enable": "true"}) as running:
        yield running


@pytest.fixture(scope="module")
def files(broker, tmp_path_factory):
    """Paths of the trusted certificate, the client's own and its key, and of both as PKCS12."""
    root, own = tmp_path_factory.mktemp("files"), broker.authority.issue("client", ())
    return {"ca": write(root, "ca.pem", broker.authority.pem),
            "chain": write(root, "own.pem", own.chain), "key": write(root, "own.key", own.key),
            "store": write(root, "own.p12", own.pkcs12("secret")),
            "trust": write(root, "trust.p12", broker.authority.trust_store("secret"))}


def test_librdkafka(broker, files):
    from confluent_kafka import Consumer, Producer

    settings = {"bootstrap.servers": broker.bootstrap, "security.protocol": "ssl",
                "ssl.ca.location": files["ca"], "ssl.certificate.location": files["chain"],
                "ssl.key.location": files["key"]}
    topic = unique("tls-librdkafka")
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
def test_kcat(broker, files):
    topic = unique("tls-kcat")
    command = ["kcat", "-b", broker.bootstrap, "-X", "security.protocol=ssl",
               "-X", f"ssl.ca.location={files['ca']}",
               "-X", f"ssl.certificate.location={files['chain']}",
               "-X", f"ssl.key.location={files['key']}", "-t", topic]
    lines = "".join(f"{number}\n" for number in range(500))
    subprocess.run([*command, "-P"], input=lines, text=True, check=True, timeout=60)
    done = subprocess.run([*command, "-C", "-e", "-q"], capture_output=True, text=True, timeout=60)
    assert done.stdout == lines


def test_kafka_python(broker, files):
    from kafka import KafkaConsumer, KafkaProducer

    settings = {"bootstrap_servers": broker.bootstrap, "security_protocol": "SSL",
                "ssl_cafile": files["ca"], "ssl_certfile": files["chain"],
                "ssl_keyfile": files["key"]}
    topic = unique("tls-kafka-python")
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


def test_aiokafka(broker, files):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    context = ssl.create_default_context(cafile=files["ca"])
    context.load_cert_chain(files["chain"], files["key"])
    settings = {"bootstrap_servers": broker.bootstrap, "security_protocol": "SSL",
                "ssl_context": context}
    topic = unique("tls-aiokafka")

    async def through() -> list[bytes]:
        async with AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send(topic, value)
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(through(), 60)) == VALUES


@pytest.mark.kafka
@pytest.mark.slow
def test_javas_tools_by_their_command_config(broker, files, tmp_path):
    from bench.kafka import run_tool

    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SSL\nssl.truststore.password=secret\nssl.keystore.password=secret\n"
        f"ssl.truststore.location={files['trust']}\nssl.keystore.location={files['store']}\n")
    topic = unique("tls-java")
    server = ("--bootstrap-server", broker.bootstrap)

    def tool(name: str, *arguments, **options) -> str:
        done = run_tool(f"org.apache.kafka.tools.{name}", *server, *arguments, wait_s=120,
                        heap="256m", **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tool("TopicCommand", "--command-config", config, "--create", "--topic", topic)
    lines = "".join(f"{number}\n" for number in range(500))
    tool("ConsoleProducer", "--command-config", config, "--topic", topic, input=lines)
    assert tool("consumer.ConsoleConsumer", "--command-config", config, "--topic", topic,
                "--from-beginning", "--max-messages", 500) == lines
