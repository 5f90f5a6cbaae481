"""Texts of forms to bytes and back."""

import uuid

import pytest
from hypothesis import given, strategies as st

from pylog.client.serialization.plain import Float64, Int64
from pylog.console.records.encoding import encoded, header_lines, headers_of, shown
from pylog.console.pages import PageError
from pylog.console.records.masking import TopicMask


@pytest.mark.parametrize("text, form, data", [
    ("zoë", "text", "zoë".encode()), ('{"a": 1}', "json", b'{"a": 1}'), ("00 ff", "hex", b"\0\xff"),
    ("0x0A", "hex", b"\n"), (" 7 ", "int64", Int64().encode(7)), ("1", "int32", b"\0\0\0\1"),
    ("-1", "int16", b"\xff\xff"), ("1.5", "float64", Float64().encode(1.5)), ("", "null", None),
    ("", "text", b"")])
def test_each_format_gives_the_bytes_of_kafkas_serializer(text, form, data):
    assert encoded(text, form, "Value") == data


def test_a_uuid_is_text_in_its_usual_form():
    one = uuid.uuid4()
    assert encoded(one.hex, "uuid", "Key") == str(one).encode()


@pytest.mark.parametrize("text, form", [
    ("{", "json"), ("0g", "hex"), ("abc", "int32"), ("99999999999", "int32"), ("x", "uuid"),
    ("x", "no-such-format"), ("\ud800", "text")])
def test_a_text_that_does_not_fit_is_rejected(text, form):
    with pytest.raises(PageError):
        encoded(text, form, "Value")


@given(st.none() | st.binary(max_size=50) | st.text(max_size=20).map(
    lambda text: text.encode(errors="replace")))
def test_the_form_of_a_record_gives_the_same_bytes(data):
    text, form = shown(TopicMask([]).value(data))
    # A browser sends every line end as CR LF, which form_of() turns into LF.
    assert "\r" not in text
    assert encoded(text, form, "Value") == data


@given(st.lists(st.tuples(st.text("abc-", min_size=1, max_size=5),
                          st.none() | st.binary(max_size=10)), max_size=5))
def test_the_lines_of_headers_give_the_same_headers(headers):
    found = headers_of(header_lines(
        [(name, TopicMask([]).header(name, value)) for name, value in headers]))
    # Blanks around a header's text are lost, as in every form of lines.
    assert [(name, value if value is None else value.strip()) for name, value in found] == [
        (name, value if value is None else value.strip()) for name, value in headers]
