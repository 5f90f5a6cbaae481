"""Bytes of records as texts."""

import struct
import uuid

import pytest

from pylog.console.records import decoding
from pylog.console.records.decoding import HEX_SHOWN_BYTES_MAX, SHOWN_BYTES_MAX
from pylog.console.records.masking import TopicMask


def decodings(data):
    return decoding.decodings(TopicMask([]).value(data))


def first(data):
    return decodings(data)[0]


def names(data):
    return [one.name for one in decodings(data)]


@pytest.mark.parametrize("data, name, text", [
    (b"plain words", "text", "plain words"), ("zoë\n".encode(), "text", "zoë\n"),
    (b'{"a":1}', "JSON", '{\n  "a": 1\n}'), (struct.pack(">q", 2**63 - 1), "64-bit integer",
                                              "9223372036854775807"),
    (struct.pack(">i", -2), "32-bit integer", "-2"), (b"\x00\x01", "16-bit integer", "1")])
def test_the_first_decoding_is_the_most_likely(data, name, text):
    assert first(data)[:2] == (name, text)


def test_numbers_of_json_are_not_rounded():
    text = first(b'{"id": 9007199254740993, "price": 1.10, "big": 1e400, "none": {}}').text
    for written in ("9007199254740993", "1.10", "1e400", "{}"):
        assert written in text


def test_a_uuid_is_found_in_both_forms():
    one = uuid.uuid4()
    assert first(str(one).encode())[:2] == ("UUID", str(one))
    assert "UUID" in names(one.bytes)


def test_broken_and_deep_json_is_text():
    assert first(b'{"a":').name == "text"
    assert first(b"[" * 100_000).name == "text"


def test_bytes_that_are_no_text_are_hexadecimal():
    assert names(b"\xff\xfe\xfd") == ["hexadecimal"]
    assert "ff fe fd" in first(b"\xff\xfe\xfd").text
    assert names(b"\x00\x1b[31m") == ["hexadecimal"]


def test_long_contents_are_cut_and_say_so():
    long = "é".encode() * SHOWN_BYTES_MAX
    assert first(long).cut == SHOWN_BYTES_MAX
    assert decodings(long)[-1].cut == len(long) - HEX_SHOWN_BYTES_MAX
    odd = b"x" + long
    assert first(odd).name == "text"


def test_no_content_is_an_empty_text():
    assert first(b"")[:2] == ("text", "")
