"""The decoder process: values that would stop or break the console."""

import json
import time

import pytest

from pylog.client.serialization.registry import Schema
from pylog.console.values import decoder, decoder_process
from pylog.console.values.decoder_process import DECODE, ENCODE, DecoderProcess, encoded_of
from pylog.console.values.schema_formats import Bundle

LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
NULLS = {"type": "array", "items": "null"}
SCHEMAS = {1: "long", 2: LIST, 3: NULLS, 4: {"type": "nonsense"}}
BUNDLES = {number: Bundle(Schema(json.dumps(schema)), {}) for number, schema in SCHEMAS.items()}
BOMBS = {"deep": (2, b"\2" * 3_000_000 + b"\0"), "endless": (3, b"\xfe" * 8 + b"\xff\1\0"),
         "broken schema": (4, b"\0"), "cut": (1, b"\xff\xff")}


@pytest.fixture
def process(monkeypatch):
    monkeypatch.setattr(decoder_process, "COMMAND", (
        "-c", "from pylog.console.values import decoder; decoder.VALUE_S = 1.0; decoder.main()"))
    one = DecoderProcess(time.monotonic)
    yield one
    one.close()


def jobs(*given):
    return [(DECODE, key, data, ()) for key, data in given]


@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_value_fails_alone(process, name):
    good = 1, b"\x0e"
    first, bomb, last = process.run(jobs(good, BOMBS[name], good), BUNDLES)
    assert first.data == last.data == b"7"
    assert bomb.data is None and bomb.error


def test_many_values_that_break_the_decoder_end_the_request(process):
    results = process.run(jobs(*[BOMBS["endless"]] * 30), BUNDLES)
    assert len(results) == 30 and all(one.error for one in results)
    assert results[-1].error.startswith("not decoded")
    assert process.run(jobs((1, b"\2")), BUNDLES)[0].data == b"1"


def test_a_large_request_is_sent_in_parts(process):
    count = 2 * decoder_process.REQUEST_JOBS_MAX + 1
    assert {one.data for one in process.run(jobs(*[(1, b"\2")] * count), BUNDLES)} == {b"1"}


def test_a_value_is_encoded_as_it_was_decoded(process):
    [made] = process.run([(ENCODE, 1, "7", "")], BUNDLES)
    assert encoded_of(made) == (b"\x0e", ())
    [wrong] = process.run([(ENCODE, 1, '"x"', "")], BUNDLES)
    assert "64 bits" in wrong.error


def test_an_idle_process_ends_and_starts_again():
    now = [0.0]
    one = DecoderProcess(lambda: now[0])
    try:
        assert one.run(jobs((1, b"\2")), BUNDLES)[0].data == b"1"
        one.end_idle()
        assert one._process is not None
        now[0] += decoder_process.IDLE_S + 1
        one.end_idle()
        assert one._process is None
        assert one.run(jobs((1, b"\4")), BUNDLES)[0].data == b"2"
        one._process.kill()
        one._process.wait()
        assert one.run(jobs((1, b"\6")), BUNDLES)[0].data == b"3"
    finally:
        one.close()


def test_a_decoded_value_has_a_largest_size(process):
    key = "msgpack"
    data = b"\xdb" + (decoder.TEXT_BYTES_MAX + 1).to_bytes(4, "big") + b"x" * (
        decoder.TEXT_BYTES_MAX + 1)
    [found] = process.run([(DECODE, key, data, ())], {})
    assert "as JSON, more than" in found.error
    assert process.run([(DECODE, key, b"\x81\xa1a\x01", ())], {})[0].data == b'{"a": 1}'


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch):
    blocked = ("fastavro", "google.protobuf.message", "msgspec")
    monkeypatch.setattr(decoder_process, "COMMAND", (
        "-c", f"import sys; sys.modules.update(dict.fromkeys({blocked}))\n"
        "from pylog.console.values import decoder; decoder.main()"))
    bundles = {**BUNDLES, 5: Bundle(Schema('syntax = "proto3";', "PROTOBUF"), {})}
    one = DecoderProcess(time.monotonic)
    try:
        avro, proto, packed = one.run(jobs((1, b"\2"), (5, b""), ("msgpack", b"\1")), bundles)
    finally:
        one.close()
    assert "fastavro" in avro.error and "pip install 'pylog-broker[avro]'" in avro.error
    for found in (proto, packed):
        assert "pip install 'pylog-broker[schemas]'" in found.error
