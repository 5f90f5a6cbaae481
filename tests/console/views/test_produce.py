"""The produce form, and copies of records."""

import html
import re

import pytest


@pytest.fixture
def topic(broker):
    return broker.create_topic(partitions=2)


def test_a_record_is_sent_with_key_headers_partition_and_time(client, topic, served):
    served.console.audit.lines.clear()
    response = client.post(f"/topics/{topic}/produce", {
        "key": "k", "key_format": "text", "value": '{"id": 7}', "value_format": "json",
        "headers": "trace=abc\r\nraw:hex=00ff\r\nempty", "partition": "1",
        "timestamp": "1700000000000", "compression": "zstd", "count": "1"})
    assert response.status == 303
    record, = topic.records(partition=1)
    assert (record.key, record.value) == (b"k", b'{"id": 7}')
    assert list(record.headers) == [("trace", b"abc"), ("raw", b"\0\xff"), ("empty", None)]
    assert "Sent to partition 1, offset 0" in client.get(f"/topics/{topic}/produce").text
    line, = served.console.audit.lines
    assert (line["operation"], line["partition"], line["offset"]) == ("records.produce", 1, 0)
    assert "abc" not in str(line)


def test_a_tombstone_has_a_key_and_no_value(client, topic):
    client.post(f"/topics/{topic}/produce", {
        "key": "gone", "key_format": "text", "value": "ignored", "value_format": "null"})
    record, = topic.records()
    assert (record.key, record.value) == (b"gone", None)


def test_several_copies_are_sent(client, topic):
    client.post(f"/topics/{topic}/produce", {"value": "x", "value_format": "text",
                                             "partition": "0", "count": "3"})
    assert topic.values() == [b"x"] * 3


@pytest.mark.parametrize("form", [
    {"value": "{", "value_format": "json"}, {"partition": "2"}, {"partition": "x"},
    {"timestamp": "-1"}, {"compression": "rar"}, {"count": "1001"}, {"headers": "a:hex=zz"}])
def test_a_rejected_record_keeps_the_form(client, topic, form):
    response = client.post(f"/topics/{topic}/produce", {
        "value": "<b>kept</b>", "value_format": "text", **form})
    assert response.status == 400 and "The record was not sent" in response.text
    assert form.get("value", "&lt;b&gt;kept&lt;/b&gt;") in response.text
    assert topic.records() == []


def test_a_copy_of_a_record_starts_with_its_content(client, topic):
    client.post(f"/topics/{topic}/produce", {
        "key": "00ff", "key_format": "hex", "value": "line\r\nanother", "value_format": "text",
        "headers": "a=b", "partition": "1"})
    text = client.get(f"/topics/{topic}/produce?partition=1&offset=0").text
    assert "A copy of the record in partition 1, offset 0" in text
    areas = {name: html.unescape(content) for name, content in re.findall(
        r'<textarea name="(\w+)"[^>]*>([^<]*)</textarea>', text)}
    assert areas == {"key": "00ff", "value": "line\nanother", "headers": "a=b"}
    assert '<option value="hex" selected>' in text


def test_a_copy_of_a_missing_record_has_an_error_page(client, topic):
    assert client.get(f"/topics/{topic}/produce?partition=0&offset=5").status in (400, 404)
    assert client.get(f"/topics/{topic}/produce?partition=x&offset=5").status == 400
