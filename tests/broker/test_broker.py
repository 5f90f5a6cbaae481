"""A whole broker as its clients see it: interactions of data plane and control plane."""

import struct
import threading
import time

import pytest

from tests.wire import raw, talk
from tests.wire.messages import ask
from tests.wire.raw import Connection

BROKER_SETTINGS = {"log.flush.acks.all.enable": "true"}
CODECS = {"gzip": raw.GZIP, "snappy": raw.SNAPPY, "lz4": raw.LZ4, "zstd": raw.ZSTD,
          "uncompressed": raw.NONE}


def _codec(batch: bytes) -> int:
    return struct.unpack_from(">h", batch, 21)[0] & 7


def _records_of(batch: bytes) -> list:
    from pylog._native.records.batch import records

    return [(key, value) for _, _, key, value, _ in records(batch)]


@pytest.mark.parametrize("wanted", CODECS)
@pytest.mark.parametrize("sent", [raw.NONE, raw.LZ4, raw.ZSTD])
def test_topic_with_a_codec_stores_batches_with_it(brokerd, wanted, sent):
    name = talk.unique("recoded")
    talk.create_topic(brokerd.port, name, compression_type=wanted)
    rows = [raw.record(b"k%d" % i, b"v" * 500, offset_delta=i) for i in range(20)]
    talk.append(brokerd.port, name, raw.batch(rows, codec=sent))
    with Connection(brokerd.port) as connection:
        stored = talk.fetch(connection, name)["records"]
    assert _codec(stored) == CODECS[wanted]
    assert _records_of(stored) == [(b"k%d" % i, b"v" * 500) for i in range(20)]


def test_large_compressed_batch_is_validated_and_stored_unchanged(brokerd):
    name = talk.unique("large")
    talk.create_topic(brokerd.port, name)
    import os

    sent = raw.batch([raw.record(b"k", os.urandom(400_000))], codec=raw.LZ4)
    talk.append(brokerd.port, name, sent)
    with Connection(brokerd.port) as connection:
        stored = talk.fetch(connection, name)["records"]
    assert stored[17:] == sent[17:]


def test_append_completes_a_waiting_fetch(brokerd):
    name = talk.unique("poll")
    talk.create_topic(brokerd.port, name)
    found, asking = {}, threading.Event()

    def wait():
        with Connection(brokerd.port) as connection:
            begin = time.monotonic()
            asking.set()
            found["row"] = talk.fetch(connection, name, wait_ms_max=8000, bytes_min=1)
            found["seconds"] = time.monotonic() - begin

    reader = threading.Thread(target=wait)
    reader.start()
    assert asking.wait(30)
    time.sleep(0.3)
    talk.append(brokerd.port, name, raw.batch())
    reader.join(30)
    # Without waiting for the append it would have been empty, or would have taken the full wait.
    assert found["row"]["records"] and found["seconds"] < 7.5


def test_a_long_poll_without_an_append_ends_empty_after_its_wait(brokerd):
    name = talk.unique("idle")
    talk.create_topic(brokerd.port, name)
    with Connection(brokerd.port) as connection:
        begin = time.monotonic()
        row = talk.fetch(connection, name, wait_ms_max=300, bytes_min=1)
        seconds = time.monotonic() - begin
    assert row["error_code"] == 0 and not row["records"] and seconds >= 0.29


def test_pipelined_produce_requests_are_appended_and_answered_in_order(brokerd):
    name = talk.unique("pipeline")
    talk.create_topic(brokerd.port, name)
    with Connection(brokerd.port) as connection:
        for number in range(50):
            body = raw.produce_body(8, name, [(0, raw.batch([raw.record(b"k", b"%d" % number)]))])
            connection.send(raw.frame(raw.header(raw.PRODUCE, 8, number) + body))
        offsets = []
        for number in range(50):
            answer = connection.answer(raw.PRODUCE, 8, number)
            offsets.append(struct.unpack_from(">q", answer, 4 + 2 + len(name) + 4 + 4 + 2)[0])
    assert offsets == list(range(50))


def test_deleted_topic_is_unknown_to_clients_and_its_name_is_free(brokerd):
    name = talk.unique("again")
    first = talk.create_topic(brokerd.port, name)
    with Connection(brokerd.port) as connection:
        assert talk.produce(connection, name, raw.batch())["error_code"] == 0
        assert talk.fetch(connection, name)["records"]
        ask(connection, raw.DELETE_TOPICS, 4, topic_names=[name], timeout=10000)
        assert talk.produce(connection, name, raw.batch())["error_code"] == 3
        assert talk.fetch(connection, name)["error_code"] == 3
        assert talk.create_topic(brokerd.port, name) != first
        row = talk.fetch(connection, name)
    assert row["error_code"] == 0 and not row["records"]


def test_repeated_partition_in_one_request_stores_both_batches(brokerd):
    name = talk.unique("twice")
    talk.create_topic(brokerd.port, name)
    body = raw.produce_body(8, name, [(0, raw.batch()), (0, raw.batch())])
    with Connection(brokerd.port) as connection:
        connection.call(raw.PRODUCE, 8, body)
        assert talk.fetch(connection, name)["high_watermark"] == 2


def test_keyless_records_on_a_compacted_topic_are_rejected_and_named(brokerd):
    name = talk.unique("compacted")
    talk.create_topic(brokerd.port, name, cleanup_policy="compact")
    rows = [raw.record(b"k"), raw.record(None, offset_delta=1), raw.record(None, offset_delta=2)]
    with Connection(brokerd.port) as connection:
        row = talk.produce(connection, name, raw.batch(rows))
    assert row["error_code"] == 87
    assert [error["batch_index"] for error in row["record_errors"]] == [1, 2]


def test_log_append_time_is_the_brokers_clock(brokerd):
    name = talk.unique("stamped")
    talk.create_topic(brokerd.port, name, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    with Connection(brokerd.port) as connection:
        row = talk.produce(connection, name, raw.batch())
        stored = talk.fetch(connection, name)["records"]
    after = int(time.time() * 1000)
    stamp = struct.unpack_from(">q", stored, 35)[0]
    assert before <= stamp <= after
    assert row["log_append_time"] == stamp
    assert struct.unpack_from(">h", stored, 21)[0] & 8
