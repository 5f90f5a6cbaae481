"""The content of a topic, and messages of failed assertions about it."""

import json

import pytest

from pylog.testing import Record, record
from pylog.testing.errors import Refused


@pytest.fixture
def topic(broker):
    return broker.create_topic("orders", partitions=2)


def _message(topic, expected, **options) -> str:
    with pytest.raises(AssertionError) as caught:
        topic.assert_records(expected, **options)
    return str(caught.value)


def test_only_given_fields_are_compared(topic):
    topic.append("a", ("k", "b"), record(value="c", headers={"h": "x"}, timestamp=7))
    topic.assert_records(["a", ("k", "b"), record(timestamp=7, headers=[("h", b"x")])])
    topic.assert_records([b"a", (b"k", b"b"), record(offset=2)])


def test_null_keys_and_values_are_none(topic):
    topic.append(("k", None), (None, "v"))
    assert [(row.key, row.value) for row in topic.records()] == [(b"k", None), (None, b"v")]


def test_failed_assertion_lists_missing_and_extra_records(topic):
    topic.append("a", "b", "d")
    assert _message(topic, ["a", "c", "d", "e"]).splitlines() == [
        "topic orders: 3 records, 4 expected (- expected, + found)",
        "    value=b'a'",
        "  - value=b'c'",
        "  + value=b'b'    <- partition 0, offset 1",
        "    value=b'd'",
        "  - value=b'e'",
    ]


def test_long_equal_stretches_and_long_values_are_cut_short(topic):
    topic.append(*[str(number) for number in range(500)], "x" * 1000)
    text = _message(topic, [str(number) for number in range(500)])
    assert "494 more as expected" in text and "(1003 characters)" in text
    assert len(text.splitlines()) < 15


def test_any_order_is_for_records_of_several_partitions(topic):
    topic.append("a", partition=1)
    topic.append("b", partition=0)
    topic.assert_records(["a", "b"], any_order=True)
    topic.assert_records(["b", "a"])
    topic.assert_records(["a"], partition=1)
    assert "- value=b'c'" in _message(topic, ["a", "b", "c"], any_order=True)


def test_values_can_be_decoded_before_they_are_compared(topic):
    topic.append(json.dumps({"n": 1}), json.dumps({"n": 2}))
    topic.assert_records([{"n": 1}, {"n": 2}], value=json.loads)
    assert topic.values(value=json.loads) == [{"n": 1}, {"n": 2}]
    assert "- value={'n': 3}" in _message(topic, [{"n": 1}, {"n": 3}], value=json.loads)


def test_within_waits_for_pending_records(topic):
    import threading

    late = threading.Timer(0.1, topic.append, ["late"])
    late.start()
    try:
        assert topic.assert_records(["late"], within=10)[0].value == b"late"
    finally:
        late.join()
    with pytest.raises(AssertionError):
        topic.assert_records(["late", "never"], within=0.05)


def test_records_are_tuples_with_names(topic):
    topic.append(record(key="k", value="v", timestamp=5))
    assert topic.records() == [Record(0, 0, 5, b"k", b"v", ())]


def test_an_unknown_field_is_rejected():
    with pytest.raises(TypeError, match="no colour"):
        record(colour="red")


def test_empty_topic_is_reported_as_empty(topic):
    topic.assert_empty()
    assert topic.ends() == [(0, 0), (0, 0)]


def test_topic_cannot_be_deleted_twice(broker, topic):
    topic.delete()
    assert topic.partitions == 0 and broker.topics() == []
    with pytest.raises(Refused) as caught:
        topic.delete()
    assert caught.value.code == 3


def test_failed_topic_creation_reports_the_reason(broker):
    with pytest.raises(Refused, match="retention"):
        broker.create_topic("bad", retention_ms="soon")
