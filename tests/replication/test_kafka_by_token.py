"""A brokerd and a Kafka that authenticate to each other with tokens of one issuer."""

import json
import time

import pytest

from tests.replication.test_secured_kafka import (
    OURS, THEIRS, followed_while_logins_end, settings, started,
)
from tests.security.issuer import Issuer, served

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]

LIFE_S = 20
CLASSES = "org.apache.kafka.common.security.oauthbearer"
JAAS = f'{CLASSES}.OAuthBearerLoginModule required clientId="node" clientSecret="s3cret";'


def of_kafka() -> dict:
    """Return Kafka's token settings: retriever and validator classes, which ours does not need."""
    found = {}
    for name in ("inside", "controller"):
        for side, kind in (("login", "Login"), ("server", "Validator")):
            found[f"listener.name.{name}.oauthbearer.sasl.{side}.callback.handler.class"] = \
                f"{CLASSES}.OAuthBearer{kind}CallbackHandler"
    return found


def test_a_kafka_and_ours_follow_each_other_by_tokens_that_end(tmp_path, monkeypatch):
    issuer = Issuer()
    with served(issuer, {"node": "s3cret"}, lasts_s=LIFE_S) as server:
        keys = tmp_path / "keys.json"
        keys.write_text(json.dumps(json.loads(issuer.published)))
        endpoint = f"{server.url}/token"
        # Kafka connects only to URLs allowed on the command line.
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="
                           f"{endpoint},{keys.as_uri()}")
        shared = {
            **settings(tmp_path, JAAS, "OAUTHBEARER"),
            "sasl.oauthbearer.token.endpoint.url": endpoint,
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.allow.unverified.audience": "true",
            "sasl.oauthbearer.expected.issuer": issuer.name}
        with started(tmp_path, shared, of_kafka()) as (theirs, ours):
            begun_s = time.monotonic()
            followed_while_logins_end(theirs, ours, [THEIRS, OURS])
            followed_while_logins_end(theirs, ours, [OURS, THEIRS])
            assert time.monotonic() - begun_s > LIFE_S
