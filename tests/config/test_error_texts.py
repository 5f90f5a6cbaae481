"""A rejection is one line with the setting, its source, its value, and the permitted values."""

import re

import pytest

from pylog.config import ConfigError, Settings, catalogue, groups, validate_topic_config, values

ALLOWED = re.compile(
    r"Not a number of type (SHORT|INT|LONG|DOUBLE)|either true or false|must be one of"
    r"|at least -?\d|no more than -?\d|must be between|must be non-empty|include: \S")
NUMBERS = {"short", "int", "long", "double"}


def wrong_values(setting) -> list[str]:
    """Return invalid texts for the setting, none if it accepts any."""
    if setting.type in NUMBERS:
        found = ["wrong"]
        low, dots, high = setting.limits.split("|")[-1].partition("..")
        if dots and low:
            found.append(str(int(float(low)) - 1000))
        if dots and high and setting.type == "double":
            found.append(str(float(high) + 1))
        return found
    if setting.type == "boolean":
        return ["wrong"]
    if setting.limits.startswith("+") and not values.limits_of(setting):
        return [""]
    if values.limits_of(setting) == ["non-empty"]:
        return [""]
    return ["wrong"] if values.limits_of(setting) else []


def refusal(call) -> str:
    with pytest.raises(ConfigError) as raised:
        call()
    return str(raised.value)


def check(text: str, name: str, value: str) -> None:
    assert "\n" not in text
    assert name in text and value in text, text
    assert ALLOWED.search(text), text


BROKER = [(name, value) for name in catalogue.broker_names()
          for value in wrong_values(catalogue.broker(name))]
TOPIC = [(name, value) for name in catalogue.topic_names()
         for value in wrong_values(catalogue.topic(name))]
GROUP = [(name, value) for name in groups.names() for value in wrong_values(groups.group(name))]


def test_invalid_broker_setting_is_reported_with_value_and_range():
    for name, value in BROKER:
        check(refusal(lambda name=name, value=value: Settings({name: value})), name,
              value)


def test_invalid_topic_setting_is_reported_with_value_and_range():
    for name, value in TOPIC:
        check(refusal(lambda name=name, value=value: validate_topic_config(name, value)), name,
              value)


def test_invalid_group_setting_is_reported_with_value_and_range():
    for name, value in GROUP:
        check(refusal(lambda name=name, value=value: groups.validate_group_configs(
            {name: value}, Settings())), name, value)


def test_most_settings_have_wrong_values():
    assert len(BROKER) > 250 and len(TOPIC) > 25 and len(GROUP) > 10


@pytest.mark.parametrize(("line", "words"), [
    ("log.segment.bytes=1", "log.segment.bytes"),
    ("log.segment.byte=1", "nearest valid name: log.segment.bytes"),
    ("listeners=PLAINTEXT://:1,PLAINTEXT://:2", "PLAINTEXT appears twice"),
    ("inter.broker.listener.name=INSIDE", "no listener has that name; there are: PLAINTEXT"),
    ("advertised.listeners=OTHER://h:1", "listener.security.protocol.map"),
    ("advertised.listeners=PLAINTEXT://0.0.0.0:1", "not an address that clients can connect to"),
    ("log.dirs=/a,/b,/a/", "/a appears twice"),
    ("process.roles=broker", "controller.quorum.voters"),
    ("zookeeper.connect=x", "process.roles"),
    ("log.retention.ms=0", "unlimited"),
    ("max.connections=0", "greater than or equal to 1"),
    ("cordoned.log.dirs=/x", "/x"),
    ("log.dir=\\u12", "four hexadecimal digits"),
])
def test_error_in_a_file_names_its_line(tmp_path, line, words):
    path = tmp_path / "server.properties"
    path.write_text(f"# ours\n\n{line}\n")
    text = refusal(lambda: Settings.load(str(path)))
    assert words in text
    assert f"{path}:3" in text


def test_contradictory_settings_are_reported_with_both_places(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("broker.id=1\nlog.dirs=/a\nnode.id=2\n")
    text = refusal(lambda: Settings.load(str(path)))
    assert text.endswith(f"({path}:1, {path}:3)")
    text = refusal(lambda: Settings.load(str(path), ["broker.id=3"]))
    assert text.endswith(f"(--override, {path}:3)")


def test_default_value_has_no_place():
    assert "(" not in refusal(lambda: Settings({"log.retention.ms": "0"})).replace("(-1)", "")
