"""JSON text as Jackson writes it."""

import pytest

from pylog.registry.formats import json_text


@pytest.mark.parametrize("source, text", [
    ("1", "1"), ("1.0", "1.0"), ("1e10", "1.0E10"), ("123456789.5", "1.234567895E8"),
    ("0.0001", "1.0E-4"), ("1.5e-7", "1.5E-7"), ("-0.0", "-0.0"), ("1e7", "1.0E7"),
    ("12345678.9", "1.23456789E7"), ("1e100", "1.0E100"), ("0.001", "0.001"),
    ('"\\u0001\\"/\u2028"', '"\\u0001\\"/\u2028"'), ("[true, null, {}]", "[true,null,{}]"),
    ('{"b": 1, "a": [ ]}', '{"b":1,"a":[]}')])
def test_values_are_written_like_java_writes_them(source, text):
    assert json_text.text_of(json_text.parse(source)) == text


def test_keys_can_be_sorted_at_all_levels():
    assert json_text.text_of({"b": {"d": 1, "c": 2}, "a": 0}, is_sorted=True) == (
        '{"a":0,"b":{"c":2,"d":1}}')


@pytest.mark.parametrize("source", ["NaN", "Infinity", "{", "[" * 100_000, '"a" "b"'])
def test_texts_that_are_no_json_are_refused(source):
    with pytest.raises(ValueError):
        json_text.parse(source)
