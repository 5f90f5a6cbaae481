"""Kafka clients that authenticate with bearer tokens, each with its own settings."""

import time

import pytest
from joserfc import jwk

from pylog.testing import Broker
from tests.clients import round_trips
from tests.security.issuer import Issuer, served
from tests.tools.support import run
from tests.wire.talk import unique

VALUES = [b"%04d" % number for number in range(100)]


@pytest.fixture(scope="module")
def issuer():
    made, made.signing = Issuer(), jwk.RSAKey.generate_key(2048)
    with served(made, {"alice": "her-secret", "signer": made.signing}) as server:
        made.server = server
        yield made


@pytest.fixture(scope="module")
def broker(issuer):
    with Broker(settings={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0", "auto.create.topics.enable": "true",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.server.url}/keys",
            "sasl.oauthbearer.allow.unverified.audience": "true",
            "sasl.oauthbearer.allow.unverified.issuer": "true"}) as running:
        yield running


def test_librdkafka_logs_in_with_the_token_of_a_callback(broker, issuer):
    settings = {"bootstrap.servers": broker.bootstrap, "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda config: (issuer.token("alice"), time.time() + 3600)}
    assert round_trips.librdkafka(settings, unique("oauth-librdkafka"), VALUES) == VALUES


def test_librdkafka_logs_in_with_the_token_of_an_issuer(broker, issuer):
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({
        "bootstrap.servers": broker.bootstrap, "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "alice", "sasl.oauthbearer.client.secret": "her-secret",
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.server.url}/token"})
    assert admin.list_topics(timeout=30).brokers


def test_kafka_python_logs_in_with_a_token(broker, issuer):
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        def token(self):
            return issuer.token("alice")

    settings = {"bootstrap_servers": broker.bootstrap, "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider()}
    assert round_trips.kafka_python(settings, unique("oauth-kafka-python"), VALUES) == VALUES


def test_aiokafka_logs_in_with_a_token(broker, issuer):
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        async def token(self):
            return issuer.token("alice")

    settings = {"bootstrap_servers": broker.bootstrap, "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider()}
    assert round_trips.aiokafka(settings, unique("oauth-aiokafka"), VALUES) == VALUES


def by_assertion(issuer, folder, **more):
    """Return a properties file for Java's clients and ours: a signed assertion for a token."""
    key = folder / "key"
    # Java's clients expect the key without the PEM lines around it.
    key.write_text("".join(issuer.signing.as_pem(private=True).decode().split("\n")[1:-2]))
    package = "org.apache.kafka.common.security.oauthbearer"
    prefix = "sasl.oauthbearer"
    settings = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
        f"{prefix}.token.endpoint.url": f"{issuer.server.url}/token",
        "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        f"{prefix}.assertion.private.key.file": key, f"{prefix}.assertion.claim.iss": "signer",
        f"{prefix}.assertion.claim.sub": "alice", f"{prefix}.assertion.claim.aud": "issuer",
        "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;", **more}
    config = folder / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return config


@pytest.mark.parametrize("kind", ["DefaultJwtRetriever", "JwtBearerJwtRetriever"])
def test_our_tool_logs_in_with_a_signed_assertion(broker, issuer, tmp_path, kind):
    config = by_assertion(issuer, tmp_path, **{
        "sasl.oauthbearer.jwt.retriever.class":
            f"org.apache.kafka.common.security.oauthbearer.{kind}"})
    ended = run("topics", "list", "-c", str(config), broker=broker)
    assert ended.code == 0 and issuer.server.asserted[-1][1]["aud"] == "issuer"


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DefaultJwtRetriever", "JwtBearerJwtRetriever"])
def test_java_tools_log_in_with_a_signed_assertion(broker, issuer, tmp_path, kind):
    package = "org.apache.kafka.common.security.oauthbearer"
    template = tmp_path / "template"
    template.write_text('{"header": {}, "payload": {}}')
    config = by_assertion(issuer, tmp_path, **{
        "sasl.oauthbearer.jwt.retriever.class": f"{package}.{kind}",
        "sasl.oauthbearer.assertion.template.file": template})
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.server.url}/token"
    files = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.files=" \
        f"{tmp_path / 'key'},{template}"
    lines = "".join(f"{number}\n" for number in range(500))
    assert round_trips.java_tools(broker.bootstrap, config, unique("oauth-assertion"), lines,
                                  jvm_options=(allowed, files)) == lines


@pytest.mark.kafka
@pytest.mark.slow
def test_java_tools_log_in_with_the_token_of_an_issuer(broker, issuer, tmp_path):
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    endpoint = f"{issuer.server.url}/token"
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={endpoint}\n"
        "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler\n"
        f'sasl.jaas.config={module} required clientId="alice" clientSecret="her-secret";\n')
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={endpoint}"
    lines = "".join(f"{number}\n" for number in range(500))
    assert round_trips.java_tools(broker.bootstrap, config, unique("oauth-java"), lines,
                                  jvm_options=(allowed,)) == lines
