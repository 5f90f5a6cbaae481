"""Filters of a query string: what they mean, and what is rejected with which remedy."""

import datetime

import pytest

from pylog._native.client.search import Test
from pylog.client.columns.rows import Row
from pylog.console.records import filters
from pylog.console.records.filters import FilterError, json_test, parse

setattr(Test, "__test__", False)  # noqa: B010 -- pytest must not collect it


@pytest.mark.parametrize("text, path, operator, value, kind", [
    ("$.customer.id == 7", (b"customer", b"id"), "==", b"7", "number"),
    ("$.customer.id=7", (b"customer", b"id"), "==", b"7", "number"),
    ("$.a[0].b >= -1.5e3", (b"a", 0, b"b"), ">=", b"-1.5e3", "number"),
    ('$["unit price"] != null', (b"unit price",), "!=", b"null", "literal"),
    ('$.name contains "new \\u00e9"', (b"name",), "contains", "new é".encode(), "string"),
    ("$.state == open now", (b"state",), "==", b"open now", "string"),
    ('$.id == "7"', (b"id",), "==", b"7", "string"),
    ("$.error exists", (b"error",), "exists", b"", "string"),
    ("$.error", (b"error",), "exists", b"", "string"),
    ("$ == true", (), "==", b"true", "literal"),
    ("$.é == 18446744073709551615", ("é".encode(),), "==", b"18446744073709551615", "number"),
])
def test_json_condition_is_understood(text, path, operator, value, kind):
    assert json_test("value_json", text) == Test(0, "value_json", operator, value, path=path,
                                                 kind=kind)


@pytest.mark.parametrize("text", [
    "customer.id == 7", "$.a[x] == 1", "$.a ==", "$.a exists 7", "$.a ~ 7", '$.a == "open',
    "$..a == 1", "$.a[-1] == 1", "$.containsx y"])
def test_json_condition_that_is_not_understood_names_the_field_and_an_example(text):
    with pytest.raises(FilterError) as raised:
        json_test("value_json", text)
    assert raised.value.field == "json"
    assert "$.customer.id == 7" in raised.value.remedy


def test_conditions_of_one_field_are_alternatives_and_json_conditions_are_not():
    made = parse([("key", "a"), ("key_prefix", "b"), ("value", "x"), ("value", "y"),
                  ("json", "$.a > 1"), ("json", "$.a < 5")])
    groups = {}
    for test in made.tests:
        groups.setdefault(test.group, []).append((test.op, test.text))
    assert list(groups.values()) == [[("==", b"a"), ("prefix", b"b")], [(">", b"1")], [("<", b"5")],
                                     [("contains", b"x"), ("contains", b"y")]]


def test_cheap_tests_come_first():
    made = parse([("json", "$.a == 1"), ("value", "x"), ("key", "k"), ("producer_id", "7"),
                  ("size_min", "1"), ("batch_max", "9")])
    assert [test.field for test in made.tests] == [
        "batch_bytes", "record_bytes", "producer_id", "key", "value_json", "value"]


@pytest.mark.parametrize("text, wanted", [
    ("trace", ("exists", b"", b"trace")), ("trace=a=b", ("==", b"a=b", b"trace")),
    ("trace~part", ("contains", b"part", b"trace")), ("trace == x", ("==", b"x", b"trace"))])
def test_header_condition_is_understood(text, wanted):
    test = filters.header_test(text)
    assert (test.op, test.text, test.name) == wanted


@pytest.mark.parametrize("name, value", [
    ("partition", "a"), ("partition", "1,,2"), ("size_min", "-1"), ("offset_from", "9" * 20),
    ("since", "yesterday"), ("until", "2026-13-01"), ("order", "random"), ("left", "0:5"),
    ("left", "0:1-2;"), ("header", "=x"), ("key_regex", "("), ("value_regex", "(?<name"),
    ("value_regex", "x" * 1001), ("limit", "many")])
def test_field_that_is_not_understood_is_named(name, value):
    with pytest.raises(FilterError) as raised:
        parse([(name, value)])
    assert raised.value.field == name and raised.value.remedy


def test_times_are_milliseconds_or_iso_8601():
    at = datetime.datetime(2026, 5, 31, 14, 30, tzinfo=datetime.UTC)
    wanted = round(at.timestamp() * 1000)
    for text in (str(wanted), "2026-05-31T14:30Z", "2026-05-31T16:30+02:00",
                 at.astimezone().replace(tzinfo=None).isoformat()):
        assert parse([("since", text)]).since_ms == wanted, text


def test_ranges_survive_a_round_trip():
    ranges = {0: [(5, 9), (1, 3)], 7: [(0, 2**63 - 1)]}
    text = filters.ranges_text(ranges)
    assert text == f"0:1-3,0:5-9,7:0-{2**63 - 1}"
    assert filters.ranges_of(text) == {0: [(1, 3), (5, 9)], 7: [(0, 2**63 - 1)]}


def test_only_a_single_whole_key_allows_the_partition_shortcut():
    assert parse([("key", "a")]).whole_key == b"a"
    assert parse([("key", "a"), ("key", "b")]).whole_key is None
    assert parse([("key_prefix", "a")]).whole_key is None


def test_regular_expressions_search_bytes():
    made = parse([("value_regex", "é+$"), ("key_regex", "^a"), ("key_regex", "^b")])
    row = Row(0, 0, 0, b"b1", b"\xff " + "éé".encode(), [])
    assert made.matches(row)
    assert not made.matches(row._replace(key=b"c"))
    assert not made.matches(row._replace(value=None))


def test_empty_and_unknown_names_are_ignored():
    made = parse([("value", ""), ("color", "red")])
    assert made.is_empty and made == filters.Filter()
