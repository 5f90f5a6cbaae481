"""Secrets in settings, texts, JSON and commands are hidden; other content stays."""

import json

import pytest

from pylog.tools.host.redaction import HIDDEN, Redaction, is_secret

SECRET = "Tr0ub4dor & 3 §"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7\n" \
      "-----END PRIVATE KEY-----"


@pytest.mark.parametrize("line", [
    f"password={SECRET}", f"sasl.password: {SECRET}", f'msg="login" password="{SECRET}" user=x',
    f"{{'password': '{SECRET}', 'user': 'x'}}", f'{{"ssl.key.password": "{SECRET}"}}',
    f"SCRAM-SHA-256=[name=alice,password={SECRET},iterations=4096]",
    f'KafkaServer {{ org.x.PlainLoginModule required username="u" password="{SECRET}"; }};',
    f"sasl.jaas.config=org.x.PlainLoginModule required user_bob='{SECRET}';",
    f"AWS_SECRET_ACCESS_KEY={SECRET}", f"metrics.token = {SECRET}",
    f"listener.name.x.ssl.keystore.key={SECRET}",
    f"schema.registry.basic.auth.user.info=u:{SECRET}"])
def test_value_with_a_telling_name_is_hidden_to_its_end(line):
    found = Redaction().text(f"before\n{line}\nafter")
    for part in SECRET.split():
        if len(part) > 1:
            assert part not in found, found
    assert found.startswith("before\n") and found.endswith("\nafter")


@pytest.mark.parametrize(("text", "secret"), [
    ("get https://bob:s3cr3t/x@y@registry:8081/subjects", "s3cr3t"),
    ("Authorization: Bearer abcdef0123456789", "abcdef0123456789"),
    ("header basic dXNlcjpwYXNz sent", "dXNlcjpwYXNz"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVm sent", "dozjgNryP4J3jVm"),
    ("stored pylog:sealed:1:AAAABBBBCCCC= here", "AAAABBBBCCCC"),
    ("brokerd --token hunter2hunter2 --x", "hunter2hunter2"),
    (f"key is {KEY} end", "MIIEvQIBADANBgkqhkiG9w0BAQEF"),
    ("cut off -----BEGIN RSA PRIVATE KEY-----\nMIIEvQIBADAN", "MIIEvQIBADAN")])
def test_secret_is_recognized_by_its_form(text, secret):
    found = Redaction().text(text)
    assert secret not in found and HIDDEN in found


@pytest.mark.parametrize("text", [
    "time=2026-11-28T14:00:00Z level=info logger=pylog.log msg=\"partitions opened\" count=54",
    'pylog_topic_in_bytes_total{topic="orders"} 17.0', "listeners=PLAINTEXT://0.0.0.0:9092",
    "a certificate: -----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "CVE and mail of a user@example.org", "log.retention.ms=604800000"])
def test_other_text_stays_as_it_is(text):
    assert Redaction().text(text) == text


def test_password_that_is_a_number_is_hidden_but_other_numbers_are_not():
    redaction = Redaction()
    assert redaction.settings({
        "ssl.key.password": "20261128", "my.plugin.pin": "7712",
        "delegation.token.max.lifetime.ms": "604800000"}) == {
            "ssl.key.password": HIDDEN, "my.plugin.pin": HIDDEN,
            "delegation.token.max.lifetime.ms": "604800000"}
    assert redaction.text("tried 20261128, log.retention.ms=604800000") \
        == f"tried {HIDDEN}, log.retention.ms=604800000"


@pytest.mark.parametrize("line", ["pwd=hunter2", "token hmac: hunter2"])
def test_further_names_of_secrets_are_known(line):
    assert "hunter2" not in Redaction().text(line)


def test_known_secret_is_hidden_in_every_encoding():
    import base64
    from urllib.parse import quote

    redaction = Redaction()
    redaction.settings({"ssl.key.password": SECRET, "num.network.threads": "2"})
    raw = SECRET.encode()
    for form in (SECRET, quote(SECRET), json.dumps(SECRET)[1:-1], repr(SECRET)[1:-1],
                 base64.b64encode(raw).decode()):
        found = redaction.text(f"seen {form} here").replace("=", "")  # The padding may remain.
        assert found == f"seen {HIDDEN} here", form
    redaction.learn("ssl.keystore.key", KEY.replace("\n", "\\n"))
    assert "AASCBKcwggSjAgEAAoIBAQC7" not in redaction.text("AASCBKcwggSjAgEAAoIBAQC7")


def test_settings_are_hidden_by_type_and_unknown_ones_too():
    found = Redaction().settings({
        "listeners": "PLAINTEXT://:9092", "ssl.key.password": "abc", "unknown.plugin": "abcdef",
        "quorum.etcd.endpoints": "http://user:pa55word@h1:2379", "log.dirs": "/var/lib/brokerd",
        "delegation.token.max.lifetime.ms": "604800000", "listener.name.x.ssl.key.password": "q"})
    assert found == {
        "listeners": "PLAINTEXT://:9092", "ssl.key.password": HIDDEN, "unknown.plugin": HIDDEN,
        "quorum.etcd.endpoints": f"http://{HIDDEN}@h1:2379", "log.dirs": "/var/lib/brokerd",
        "delegation.token.max.lifetime.ms": "604800000", "listener.name.x.ssl.key.password": HIDDEN}


def test_json_stays_valid_and_redacts_by_key_and_name():
    redaction = Redaction()
    given = {"password": SECRET, "rows": [{"name": "metrics.token", "value": SECRET},
                                          {"name": "listeners", "value": "x"}],
             "token_count": 7, "text": f"password={SECRET}"}
    found = json.loads(redaction.json_text(json.dumps(given)))
    assert found["password"] == HIDDEN and found["rows"][0]["value"] == HIDDEN
    assert found["rows"][1]["value"] == "x" and found["token_count"] == 7
    assert "Tr0ub4dor" not in json.dumps(found)
    assert redaction.json_text(f"no JSON, password={SECRET}") == f"no JSON, password={HIDDEN}"


def test_command_line_hides_overrides_and_following_words():
    words = ["brokerd", "server.properties", "--override", "ssl.key.password=hunter22",
             "--override", "log.dirs=/data", "--metrics-token", "abcdefgh",
             "--add-scram", "SCRAM-SHA-256=[name=alice,password=pw pw]"]
    found = Redaction().command_line(words)
    assert found[:4] == ["brokerd", "server.properties", "--override", f"ssl.key.password={HIDDEN}"]
    assert found[5] == "log.dirs=/data" and found[7] == HIDDEN
    assert "pw" not in found[9].replace("password", "")


@pytest.mark.parametrize(("name", "so"), [
    ("ssl.key.password", True), ("something.unknown", True), ("metrics.token", True),
    ("log.dirs", False), ("listeners", False)])
def test_secret_settings_are_known_by_type_and_name(name, so):
    assert is_secret(name) is so
