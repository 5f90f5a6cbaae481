"""Configuration files and setting names of other clients, and durations."""

import pytest

from pylog.client.config import aliases, durations
from pylog.client.config.settings import ROWS, Settings
from pylog.client.errors import ConfigError
from pylog.client.serialization.plain import Int64, Text
from pylog.config.properties import parse

SERVERS = {"bootstrap.servers": "localhost:9092"}
JAVA = r"""
bootstrap.servers=localhost:9093
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
    username="alice" \
    password="a ; b=c";
ssl.truststore.location=/etc/kafka/trust.jks
ssl.truststore.password=changeit
client.dns.lookup=use_all_dns_ips
key.deserializer=org.apache.kafka.common.serialization.LongDeserializer
value.deserializer=org.apache.kafka.common.serialization.StringDeserializer
partition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor,\
    org.apache.kafka.clients.consumer.CooperativeStickyAssignor
"""


def given(text: str) -> dict:
    return {name: value for name, (value, _) in parse(text, "client.properties").items()}


def test_a_file_of_javas_client_works_as_it_is():
    found = Settings("consumer", given(JAVA))
    assert (found["sasl.username"], found["sasl.password"]) == ("alice", "a ; b=c")
    assert found["ssl.truststore.location"] == "/etc/kafka/trust.jks"
    assert isinstance(found["key.deserializer"], Int64)
    assert isinstance(found["value.deserializer"], Text)
    assert found["partition.assignment.strategy"] == ["range", "cooperative-sticky"]
    assert found.idle == ["client.dns.lookup"]


@pytest.mark.parametrize("module, more, wanted", [
    ("plain.PlainLoginModule", "", {}),
    ("scram.ScramLoginModule", 'tokenauth="true"', {"pylog.sasl.tokenauth": True}),
])
def test_login_modules_give_name_and_password(module, more, wanted):
    text = f'org.apache.kafka.common.security.{module} required username="u" password="p" {more};'
    assert aliases.jaas(text) == {"sasl.username": "u", "sasl.password": "p", **wanted}


def test_oauthbearer_login_module_sets_the_client_credentials():
    text = ("org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'clientId="c" clientSecret="s" scope="read";')
    prefix = "sasl.oauthbearer"
    assert aliases.jaas(text) == {
        f"{prefix}.client.credentials.client.id": "c",
        f"{prefix}.client.credentials.client.secret": "s", f"{prefix}.scope": "read"}


def test_only_javas_endpoint_retriever_class_is_accepted():
    name, package = "sasl.login.callback.handler.class", "org.apache.kafka.common.security"
    handler = f"{package}.oauthbearer.OAuthBearerLoginCallbackHandler"
    assert aliases.translated({name: handler}) == ({}, [])
    with pytest.raises(ConfigError, match=name):
        Settings("admin", {"bootstrap.servers": "h:1", name: "com.example.Own"})


@pytest.mark.parametrize("text", [
    'com.example.OtherLoginModule required username="u";', "nothing", 'a.PlainLoginModule "'])
def test_unsupported_login_module_is_rejected_without_showing_secrets(text):
    with pytest.raises(ConfigError, match="sasl.jaas.config") as refused:
        aliases.jaas(text)
    assert '"u"' not in str(refused.value)


def test_explicit_setting_takes_precedence_over_the_login_module():
    found, _ = aliases.translated({
        "sasl.username": "me", "sasl.jaas.config":
        'x.PlainLoginModule required username="other" password="p";'})
    assert found == {"sasl.username": "me", "sasl.password": "p"}


def test_librdkafkas_names_are_understood_in_their_units():
    found = Settings("producer", {
        "metadata.broker.list": "a:1,b:2", "queue.buffering.max.ms": "20",
        "queue.buffering.max.kbytes": "64", "message.send.max.retries": 3})
    assert found["bootstrap.servers"] == ["a:1", "b:2"] and found["linger.ms"] == 20
    assert found["buffer.memory"] == 65536 and found["retries"] == 3


def test_setting_given_by_two_names_is_rejected():
    with pytest.raises(ConfigError, match="linger.ms is given twice"):
        Settings("producer", {**SERVERS, "linger.ms": 1, "queue.buffering.max.ms": 2})


def test_each_alias_is_in_one_table_and_maps_to_a_setting():
    tables = [set(ROWS), set(aliases.ALIASES), set(aliases.UNITS), aliases.WITHOUT_EFFECT]
    assert len(set().union(*tables)) == sum(map(len, tables))
    targets = {*aliases.ALIASES.values(), *aliases.MEANT.values(),
               *(ours for ours, _ in aliases.UNITS.values())}
    assert targets <= set(ROWS)


@pytest.mark.parametrize("name, meant", [
    ("ssl.cafile", "ssl.ca.location"), ("sasl_plain_username", "sasl.username"),
    ("queue.buffering.max.m", "linger.ms"), ("auto.ofset.reset", "auto.offset.reset")])
def test_wrong_name_suggests_the_intended_one(name, meant):
    role = "consumer" if "auto" in name else "producer"
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        Settings(role, {**SERVERS, name: "x"})


@pytest.mark.parametrize("text, ms", [
    ("PT1H", 3_600_000), ("P7D", 604_800_000), ("PT0.5S", 500), ("P1DT2H3M4.005S", 93_784_005),
    ("pt90m", 5_400_000)])
def test_durations_are_those_of_java(text, ms):
    assert durations.milliseconds(text) == ms
    assert durations.before(f"by_duration:{text}", 10**12) == 10**12 - ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1h", "P1DT", "-PT1H", "PT1.5H"])
def test_invalid_duration_is_rejected(text):
    with pytest.raises(ConfigError, match="auto.offset.reset"):
        Settings("consumer", {**SERVERS, "auto.offset.reset": f"by_duration:{text}"})
    with pytest.raises(ConfigError, match="allowed are"):
        Settings("consumer", {**SERVERS, "auto.offset.reset": f"duration:{text}"})
