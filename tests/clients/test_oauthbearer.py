"""Kafka clients that log in with bearer tokens, each by its own settings."""

import asyncio
import time

import pytest

from pylog.testing import Broker
from tests.security.issuer import Issuer, served
from tests.wire.talk import unique

VALUES = [b"%04d" % number for number in range(100)]


@pytest.fixture(scope="module")
def issuer():
    made = Issuer()
    with served(made, {"alice": "her-secret"}) as server:
        made.server = server
        yield made


@pytest.fixture(scope="module")
def broker(issuer):
    with Broker(settings={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0", "auto.create.topics.enable": "true",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.server.url}/keys"}) as running:
        yield running


def test_librdkafka_with_a_callback(broker, issuer):
    from confluent_kafka import Consumer, Producer

    settings = {"bootstrap.servers": broker.bootstrap, "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda config: (issuer.token("alice"), time.time() + 3600)}
    topic = unique("oauth-librdkafka")
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


def test_librdkafka_with_an_issuer(broker, issuer):
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({
        "bootstrap.servers": broker.bootstrap, "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "alice", "sasl.oauthbearer.client.secret": "her-secret",
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.server.url}/token"})
    assert admin.list_topics(timeout=30).brokers


def test_kafka_python(broker, issuer):
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        def token(self):
            return issuer.token("alice")

    settings = {"bootstrap_servers": broker.bootstrap, "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider()}
    topic = unique("oauth-kafka-python")
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


def test_aiokafka(broker, issuer):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        async def token(self):
            return issuer.token("alice")

    settings = {"bootstrap_servers": broker.bootstrap, "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider()}
    topic = unique("oauth-aiokafka")

    async def through() -> list[bytes]:
        async with AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send(topic, value)
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(through(), 60)) == VALUES


@pytest.mark.kafka
@pytest.mark.slow
def test_javas_tools_with_an_issuer(broker, issuer, tmp_path):
    from bench.kafka import run_tool

    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    endpoint = f"{issuer.server.url}/token"
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={endpoint}\n"
        "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler\n"
        f'sasl.jaas.config={module} required clientId="alice" clientSecret="her-secret";\n')
    topic = unique("oauth-java")
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={endpoint}"

    def tool(name: str, *arguments, **options) -> str:
        done = run_tool(f"org.apache.kafka.tools.{name}", "--bootstrap-server", broker.bootstrap,
                        "--command-config", config, *arguments, wait_s=120, heap="256m",
                        jvm_options=(allowed,), **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tool("TopicCommand", "--create", "--topic", topic)
    lines = "".join(f"{number}\n" for number in range(500))
    tool("ConsoleProducer", "--topic", topic, input=lines)
    assert tool("consumer.ConsoleConsumer", "--topic", topic, "--from-beginning",
                "--max-messages", 500) == lines
