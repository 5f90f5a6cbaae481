"""Settings of topics and brokers: list, preview, apply."""

import json
import re

import pytest


@pytest.fixture
def topic(broker):
    name = f"configured-{len(broker.topics())}"
    broker.create_topic(name)
    return name


def fields(text):
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', text))


def value(client, path, name):
    rows = json.loads(client.get(f"{path}?format=json").text)["rows"]
    return next((row["value"], row["source"]) for row in rows if row["name"] == name)


def preview(client, path, form):
    return client.post(path if "edit" in path else f"{path}?edit=", form)


def send(client, path, form):
    """Send a settings form; its token is on the page ?edit=."""
    token = fields(client.get(f"{path}?edit=").text)["csrf"]
    return client.send("POST", path, {"csrf": token, **form})


def apply(client, path, text):
    import html

    found = {name: html.unescape(text) for name, text in fields(text).items()}
    return client.send("POST", path, found)


def test_settings_show_value_default_source_and_meaning(client, topic):
    rows = json.loads(client.get(f"/topics/{topic}/settings?q=retention.ms&format=json").text)
    row = next(row for row in rows["rows"] if row["name"] == "retention.ms")
    assert (row["value"], row["default"], row["source"]) == ("604800000", "604800000", "default")
    assert row["documentation"]


def test_a_change_is_shown_before_it_is_applied(client, served, topic):
    path = f"/topics/{topic}/settings"
    served.console.audit.lines.clear()
    shown = send(client, path, {"name": "retention.ms", "value": "1000"})
    assert shown.status == 200
    assert "<del>604800000</del>" in shown.text and "<ins>1000</ins>" in shown.text
    assert value(client, path, "retention.ms")[0] == "604800000"
    assert not served.console.audit.lines
    assert apply(client, path, shown.text).status == 303
    assert value(client, path, "retention.ms") == ("1000", "topic")
    line, = served.console.audit.lines
    assert line["settings"] == [{"name": "retention.ms", "old": "604800000", "new": "1000"}]


def test_removed_lines_reset_settings(client, topic):
    path = f"/topics/{topic}/settings"
    apply(client, path, send(client, path, {
        "lines": "retention.ms=1000\nsegment.bytes=2000000"}).text)
    shown = send(client, path, {"lines": "segment.bytes=3000000"}).text
    assert "(default)" in shown
    apply(client, path, shown)
    assert value(client, path, "retention.ms")[1] == "default"
    assert value(client, path, "segment.bytes") == ("3000000", "topic")


def test_a_change_by_someone_else_since_the_preview_is_not_overwritten(client, topic):
    path = f"/topics/{topic}/settings"
    first = send(client, path, {"name": "retention.ms", "value": "1000"}).text
    apply(client, path, send(client, path, {"name": "retention.ms", "value": "2000"}).text)
    again = apply(client, path, first)
    assert again.status == 200 and "since the preview" in again.text
    assert value(client, path, "retention.ms")[0] == "2000"


def test_an_invalid_value_is_reported_in_the_preview(client, topic):
    shown = send(client, f"/topics/{topic}/settings", {"name": "retention.ms", "value": "soon"})
    assert 'role="alert"' in shown.text and "soon" in shown.text


def test_broker_settings_can_be_changed_unless_they_are_read_only(client):
    path = "/brokers/1/settings"
    shown = send(client, path, {"name": "log.retention.ms", "value": "5000000"}).text
    assert apply(client, path, shown).status == 303
    assert value(client, path, "log.retention.ms") == ("5000000", "this broker")
    apply(client, path, send(client, path, {"name": "log.retention.ms", "reset": "1"}).text)
    assert value(client, path, "log.retention.ms")[1] != "this broker"
    assert send(client, path, {"name": "node.id", "value": "2"}).status == 400


def test_damaged_forms_are_rejected(client, topic):
    path = f"/topics/{topic}/settings"
    for form in ({}, {"changes": "{"}, {"changes": "[1]"}, {"changes": '{"a": 1}'}):
        assert send(client, path, form).status == 400, form
