import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatch
from pylog._native.records.batch import (
    BatchError, build, check, crc32c, edges, header, records, walk,
)

from pylog._native.records import batch as native_batch
from pylog._native.records.compress import compress

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
EACH_CODEC = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
NOW = 1_700_000_000_000

RECORDS = [
    (b"key", b"value", NOW, []),
    (None, b"v" * 300, NOW + 5, [("header", b"content"), ("null", None)]),
    (b"k" * 200, None, NOW - 7, []),
    (b"", b"", NOW + 5, [("", b"")]),
]
KEYED = [(b"k%d" % i, b"v" * 90, NOW + i, []) for i in range(50)]

# Kafka's error codes
CORRUPT_MESSAGE, TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION, INVALID_RECORD = (
    2,
    10,
    32,
    76,
    87,
)


def patched(batch: bytes, position: int, data: bytes, mend_crc: bool = True) -> bytes:
    out = bytearray(batch)
    out[position : position + len(data)] = data
    return mended(out) if mend_crc else bytes(out)


def mended(batch: bytearray | bytes) -> bytes:
    """Return the batch with correct length and checksum."""
    out = bytearray(batch)
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def varint(value: int) -> bytes:
    bits = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while bits >= 0x80:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes(out + bytes([bits]))


def record(
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    key: bytes = varint(-1),
    value: bytes = varint(1) + b"v",
    headers: bytes = varint(0),
    length: int | None = None,
) -> bytes:
    """Return a record's bytes with every field as given, including invalid ones."""
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + key + value + headers
    return varint(len(body) if length is None else length) + body


def raw(*bodies: bytes, count: int | None = None, codec: int = 0, attributes: int = 0) -> bytes:
    """Return a batch of given record bytes. Its header is correct unless overridden."""
    count = len(bodies) if count is None else count
    payload = b"".join(bodies)
    payload = compress(codec, payload) if codec else payload
    head = bytearray(build([(None, b"", NOW, [])])[:61])
    struct.pack_into(">hi", head, 21, codec | attributes, count - 1)
    struct.pack_into(">i", head, 57, count)
    return mended(bytes(head) + payload)


# ---- build and read


@EACH_CODEC
def test_records_are_read_back_unchanged(codec):
    batch = build(RECORDS, codec=codec, base_offset=40)
    expected = [(40 + i, t, k, v, h) for i, (k, v, t, h) in enumerate(RECORDS)]
    assert records(batch) == expected
    error, summary = check(native_batch.build(RECORDS, codec=codec), now_ms=NOW)
    assert error == 0
    assert summary["max_timestamp"] == NOW + 5
    assert summary["max_timestamp_delta"] == 1


def test_every_header_field_is_where_kafka_has_it():
    batch = build(
        RECORDS,
        base_offset=7,
        producer_id=11,
        producer_epoch=3,
        base_sequence=9,
        attributes=native_batch.TRANSACTIONAL,
        leader_epoch=5,
    )
    got = header(batch)
    assert got == (
        7,
        len(batch) - 12,
        5,
        2,
        crc32c(batch[21:]),
        native_batch.TRANSACTIONAL,
        3,
        NOW,
        NOW + 5,
        11,
        3,
        9,
        4,
    )
    kafka = DefaultRecordBatch(batch)
    assert (kafka.base_offset, kafka.leader_epoch, kafka.producer_id, kafka.producer_epoch) == (
        7,
        5,
        11,
        3,
    )
    assert kafka.base_sequence == 9 and kafka.is_transactional and kafka.validate_crc()


@EACH_CODEC
def test_kafka_python_reads_what_we_build(codec):
    [kafka] = MemoryRecords(build(RECORDS, codec=codec))
    assert kafka.validate_crc()
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in kafka] == RECORDS


@EACH_CODEC
def test_we_read_and_accept_what_kafka_python_builds(codec):
    builder = MemoryRecordsBuilder(2, codec, 1 << 20)
    for key, value, timestamp, headers in RECORDS * 100:
        assert builder.append(timestamp, key, value, headers) is not None
    builder.close()
    batch = bytes(builder.buffer())
    assert check(batch, now_ms=NOW)[0] == 0
    assert [(k, v, t, h) for _, t, k, v, h in records(batch)] == RECORDS * 100


names = st.text(max_size=8)
blobs = st.none() | st.binary(max_size=40)
record_lists = st.lists(
    st.tuples(
        blobs, blobs, st.integers(-(2**62), 2**62), st.lists(st.tuples(names, blobs), max_size=3)
    ),
    min_size=1,
    max_size=20,
)


@given(given=record_lists, codec=st.sampled_from(list(CODECS.values())))
@settings(deadline=None)
def test_any_built_batch_is_accepted_and_read_back(given, codec):
    batch = build(given, codec=codec)
    error, summary = check(batch)
    assert error == 0
    assert summary["max_timestamp"] == max(-1, *(t for _, _, t, _ in given))
    assert [(k, v, t, h) for _, t, k, v, h in records(batch)] == given
    found = native_batch.find_max_timestamp(batch)
    top = max(t for _, _, t, _ in given)
    first = next(i for i, r in enumerate(given) if r[2] == top)
    assert found == ((first, top) if top > -1 else None)


def test_a_batch_without_records_is_not_built():
    with pytest.raises(ValueError):
        build([])


def test_walk_yields_each_batch_and_stops_before_a_torn_one():
    first, second = build(RECORDS), build(KEYED, base_offset=4)
    found = list(walk(first + second))
    assert [(position, h.base_offset) for position, h in found] == [(0, 0), (len(first), 4)]
    assert [p for p, _ in walk((first + second)[:-1])] == [0]
    assert list(walk(b"")) == []
    with pytest.raises(BatchError) as raised:
        list(walk(first + b"\xff" * 100))
    assert raised.value.code == CORRUPT_MESSAGE


# ---- rules for producers: Kafka's errors for the same bytes


GOOD = build(KEYED)
ONE = raw(record())
COUNT_AT, LAST_DELTA_AT = 57, 23
FAULTS = {
    "nothing": (b"", INVALID_RECORD),
    "bad CRC": (patched(GOOD, 17, b"\0\0\0\0", mend_crc=False), CORRUPT_MESSAGE),
    "magic 0": (patched(GOOD, 16, b"\0"), INVALID_RECORD),
    "magic 1": (patched(GOOD, 16, b"\1"), INVALID_RECORD),
    "magic 3": (patched(GOOD, 16, b"\3"), CORRUPT_MESSAGE),
    "magic -1": (patched(GOOD, 16, b"\xff"), CORRUPT_MESSAGE),
    "count 0": (patched(GOOD, COUNT_AT, struct.pack(">i", 0)), INVALID_RECORD),
    "count -1": (patched(GOOD, COUNT_AT, struct.pack(">i", -1)), INVALID_RECORD),
    "count 2^31-1": (patched(GOOD, COUNT_AT, struct.pack(">i", 2**31 - 1)), INVALID_RECORD),
    "count 2 with 1 record": (raw(record(), count=2), INVALID_RECORD),
    "count 1 with 2 records": (raw(record(), record(1), count=1), INVALID_RECORD),
    "last offset delta 5": (patched(ONE, LAST_DELTA_AT, struct.pack(">i", 5)), INVALID_RECORD),
    "last offset delta -3": (patched(ONE, LAST_DELTA_AT, struct.pack(">i", -3)), INVALID_RECORD),
    "base offset 12345": (build(KEYED, base_offset=12345), INVALID_RECORD),
    "cut in half": (GOOD[: len(GOOD) // 2], INVALID_RECORD),
    "cut by one byte": (GOOD[:-1], INVALID_RECORD),
    "cut to 11 bytes": (GOOD[:11], INVALID_RECORD),
    "batch length 10": (patched(GOOD, 8, struct.pack(">i", 10), mend_crc=False), CORRUPT_MESSAGE),
    "batch length -1": (patched(GOOD, 8, struct.pack(">i", -1), mend_crc=False), CORRUPT_MESSAGE),
    "batch length below the header": (
        patched(GOOD, 8, struct.pack(">i", 48), mend_crc=False),
        CORRUPT_MESSAGE,
    ),
    "two batches": (GOOD + GOOD, INVALID_RECORD),
    "bytes behind": (GOOD + b"\0", INVALID_RECORD),
    "record length past the end": (raw(record(length=10_000)), INVALID_RECORD),
    "record length negative": (raw(record(length=-4)), INVALID_RECORD),
    "record length too short": (raw(record(length=3)), INVALID_RECORD),
    "record length one too long": (raw(record() + b"\0", count=1), INVALID_RECORD),
    "key length past the end": (raw(record(key=varint(1000))), INVALID_RECORD),
    "value length past the end": (raw(record(value=varint(2**31 - 1))), INVALID_RECORD),
    "value length -2": (raw(record(value=varint(-2))), INVALID_RECORD),
    "header count 10^9": (raw(record(headers=varint(10**9))), INVALID_RECORD),
    "header count -1": (raw(record(headers=varint(-1))), INVALID_RECORD),
    "null header key": (raw(record(headers=varint(1) + varint(-1) + varint(-1))), INVALID_RECORD),
    "offset deltas with a gap": (raw(record(0), record(2)), INVALID_RECORD),
    "offset deltas that repeat": (raw(record(0), record(0)), INVALID_RECORD),
    "varint of 6 bytes": (raw(b"\x80\x80\x80\x80\x80\x01" + record()), INVALID_RECORD),
    "control bit": (build(KEYED, attributes=native_batch.CONTROL), INVALID_RECORD),
    "producer id without sequence": (build(KEYED, producer_id=5, producer_epoch=0), INVALID_RECORD),
    "codec 5": (patched(GOOD, 21, b"\0\5"), UNSUPPORTED_COMPRESSION),
    "codec 7": (patched(GOOD, 21, b"\0\7"), UNSUPPORTED_COMPRESSION),
    "gzip flag on junk": (patched(GOOD, 21, b"\0\1"), CORRUPT_MESSAGE),
    "snappy flag on junk": (patched(GOOD, 21, b"\0\2"), CORRUPT_MESSAGE),
    "lz4 flag on junk": (patched(GOOD, 21, b"\0\3"), CORRUPT_MESSAGE),
    "zstd flag on junk": (patched(GOOD, 21, b"\0\4"), CORRUPT_MESSAGE),
    "truncated gzip": (mended(build(KEYED, codec=1)[:-9]), CORRUPT_MESSAGE),
}


@pytest.mark.parametrize(("batch", "code"), FAULTS.values(), ids=FAULTS)
def test_invalid_batch_gets_kafkas_error(batch, code):
    error, summary = check(batch, now_ms=NOW)
    assert error < 0
    assert summary["code"] == code, (summary["text"], error)
    assert summary["text"]


@pytest.mark.parametrize("codec", list(CODECS.values())[1:], ids=list(CODECS)[1:])
def test_faults_inside_compressed_records_are_found(codec):
    assert check(raw(record(), record(1), codec=codec))[0] == 0
    for bodies in (
        [record(), record(3)],
        [record(length=90)],
        [record(headers=varint(-1))],
        [record(), record(1)[:-1]],
    ):
        assert check(raw(*bodies, codec=codec))[1]["code"] == INVALID_RECORD
    assert check(raw(record(), record(1), count=1, codec=codec))[1]["code"] == INVALID_RECORD
    assert check(raw(record(), count=2, codec=codec))[1]["code"] == INVALID_RECORD


def test_unknown_attribute_bits_are_accepted():
    assert check(patched(GOOD, 21, b"\x7f\x80"))[0] == 0
    assert check(raw(record()[:1] + b"\xff" + record()[2:]))[0] == 0, "a record's attributes"


def test_a_batch_over_the_limit_is_too_large():
    assert check(GOOD, batch_bytes_max=len(GOOD))[0] == 0
    assert check(GOOD, batch_bytes_max=len(GOOD) - 1)[1]["code"] == TOO_LARGE


@EACH_CODEC
def test_records_without_required_keys_are_listed(codec):
    given = [(b"k" if i % 3 else None, b"v", NOW, []) for i in range(10)]
    _, summary = check(build(given, codec=codec), key_required=True)
    assert summary["code"] == INVALID_RECORD
    assert summary["bad_records"] == [0, 3, 6, 9]
    assert check(build(KEYED, codec=codec), key_required=True)[0] == 0


@EACH_CODEC
def test_records_outside_the_timestamp_range_are_listed(codec):
    times = [NOW, NOW - 1001, NOW - 1000, NOW + 2000, NOW + 2001, -1]
    batch = build([(b"k", b"v", t, []) for t in times], codec=codec)
    rules = {"now_ms": NOW, "timestamp_before_max_ms": 1000, "timestamp_after_max_ms": 2000}
    _, summary = check(batch, **rules)
    assert summary["code"] == INVALID_TIMESTAMP
    assert summary["bad_records"] == [1, 4]
    assert check(batch, **rules, log_append_time=True)[0] == 0
    assert check(batch, now_ms=NOW)[0] == 0


def test_producer_must_not_set_the_bit_of_log_append_time():
    for timestamp, log_append_time, code in (
            (NOW, True, INVALID_TIMESTAMP), (-1, False, INVALID_TIMESTAMP), (NOW, False, 0)):
        batch = build([(b"k", b"v", timestamp, [])], attributes=native_batch.LOG_APPEND_TIME)
        _, summary = check(batch, now_ms=NOW, log_append_time=log_append_time)
        assert summary["code"] == code


def test_at_most_32_bad_records_are_listed():
    batch = build([(None, b"v", NOW, [])] * 100)
    assert check(batch, key_required=True)[1]["bad_records"] == list(range(32))


def test_records_that_inflate_past_the_cap_are_too_large():
    batch = build([(b"k", bytes(1 << 20), NOW, [])] * 8, codec=4)
    assert check(batch, inflated_bytes_max=9 << 20)[0] == 0
    assert check(batch, inflated_bytes_max=8 << 20)[1]["code"] == TOO_LARGE
    many = patched(build(KEYED, codec=4), COUNT_AT, struct.pack(">i", 5_000_000))
    many = patched(many, LAST_DELTA_AT, struct.pack(">i", 4_999_999))
    assert check(many, inflated_bytes_max=8 << 20)[1]["code"] == TOO_LARGE


def test_five_million_equal_records_are_rejected_at_the_second():
    bomb = raw(record() * 5_000_000, count=5_000_000, codec=4)
    assert len(bomb) < 10_000
    _, summary = check(bomb, inflated_bytes_max=100 << 20)
    assert summary["code"] == INVALID_RECORD
    assert summary["inflated_bytes"] <= 128 * 1024


def test_batch_boundaries_match_a_walk():
    data = b"".join(build([(None, b"v", 0, ())] * count, base_offset=base)
                    for base, count in ((0, 1), (7, 3), (10, 100)))
    offsets, positions = edges(data)
    assert offsets == [(0, 0), (7, 9), (10, 109)]
    assert positions == [position for position, _ in walk(data)]
    assert edges(data[:-1]) == (offsets[:2], positions[:2])
    assert edges(b"") == edges(data[:3]) == ([], [])
    with pytest.raises(BatchError):
        edges(data + b"\xff" * 100)


def test_only_header_and_checksum_are_checked_without_a_walk():
    broken = raw(record(length=-4))
    assert check(broken, walk_records=False)[0] == 0
    assert (
        check(patched(GOOD, 30, b"x", mend_crc=False), walk_records=False)[1]["code"]
        == CORRUPT_MESSAGE
    )


@EACH_CODEC
def test_every_damaged_byte_under_the_checksum_is_detected(codec):
    batch = build(RECORDS, codec=codec)
    for position in range(len(batch)):
        error, _ = check(patched(batch, position, bytes([batch[position] ^ 0x41]), mend_crc=False))
        assert (error == 0) == (12 <= position < 16), position


@EACH_CODEC
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damage_with_a_correct_checksum_never_crashes(codec, data):
    out = bytearray(build(RECORDS, codec=codec))
    for position, value in data.draw(
        st.lists(
            st.tuples(st.integers(21, len(out) - 1), st.integers(0, 255)), min_size=1, max_size=5
        )
    ):
        out[position] = value
    batch = mended(out)
    error, summary = check(batch, inflated_bytes_max=1 << 20)
    assert summary["code"] in (0, 2, 10, 32, 76, 87)
    for read in (
        lambda: records(batch, 1 << 20),
        lambda: native_batch.find_timestamp(batch, NOW),
        lambda: native_batch.find_max_timestamp(batch),
        lambda: native_batch.recompress(batch, 0),
    ):
        try:
            read()
        except BatchError as raised:
            assert error != 0, f"accepted, but then: {raised}"


@given(data=st.binary(max_size=200))
@settings(deadline=None)
def test_arbitrary_bytes_are_rejected(data):
    assert check(data)[0] < 0
    with pytest.raises(BatchError):
        records(data)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_records_across_inflated_chunks_are_checked_the_same(codec):
    """Values are large, so that records cross the window of 128 KiB at every field."""
    given = [
        (b"k" * (i * 37 % 900), b"v" * (i * 7919 % 90_000), NOW + i, [(f"h{i}", b"x" * (i % 300))])
        for i in range(120)
    ]
    batch = build(given, codec=codec)
    error, summary = check(batch)
    assert error == 0
    assert summary["inflated_bytes"] == len(build(given)) - 61
    assert summary["max_timestamp_delta"] == 119
    assert native_batch.find_timestamp(batch, NOW + 77) == (77, NOW + 77)


# ---- stamping


@EACH_CODEC
def test_stamping_offset_and_epoch_preserves_the_checksum(codec):
    batch = bytearray(build(KEYED, codec=codec))
    native_batch.stamp(batch, 123_456, 9)
    got = header(batch)
    assert (got.base_offset, got.leader_epoch) == (123_456, 9)
    assert native_batch.crc_ok(batch)
    assert records(batch)[0][0] == 123_456


def test_append_time_becomes_the_time_of_every_record():
    batch = bytearray(build(KEYED))
    native_batch.stamp_append_time(batch, 42)
    assert native_batch.crc_ok(batch)
    assert {t for _, t, _, _, _ in records(batch)} == {42}
    assert native_batch.find_timestamp(batch, 42) == (0, 42)
    assert native_batch.find_timestamp(batch, 43) is None
    assert native_batch.find_max_timestamp(batch) == (0, 42)
    assert DefaultRecordBatch(bytes(batch)).timestamp_type == 1


def test_wrong_max_timestamp_is_corrected_with_a_new_checksum():
    batch = bytearray(patched(build(KEYED), 35, struct.pack(">q", 5)))
    error, summary = check(batch)
    assert error == 0 and summary["max_timestamp"] == NOW + 49
    assert native_batch.stamp_max_timestamp(batch, summary["max_timestamp"]) is True
    assert header(batch).max_timestamp == NOW + 49 and native_batch.crc_ok(batch)
    assert native_batch.stamp_max_timestamp(batch, summary["max_timestamp"]) is False


# ---- look-ups and re-encoding


@EACH_CODEC
def test_a_timestamp_is_found_exact_to_the_record(codec):
    times = [10, 5, 20, 15, 20, 30]
    batch = build([(None, b"v", t, []) for t in times], codec=codec, base_offset=100)
    assert native_batch.find_timestamp(batch, 0) == (100, 10)
    assert native_batch.find_timestamp(batch, 11) == (102, 20)
    assert native_batch.find_timestamp(batch, 11, 103) == (103, 15)
    assert native_batch.find_timestamp(batch, 30, 105) == (105, 30)
    assert native_batch.find_timestamp(batch, 31) is None
    assert native_batch.find_timestamp(batch, 0, 106) is None
    assert native_batch.find_max_timestamp(batch) == (105, 30)


def test_look_ups_accept_the_gaps_that_compaction_leaves():
    batch = bytearray(raw(record(2, 10), record(7, 30), count=2))
    native_batch.stamp(batch, 1000, 0)
    assert native_batch.find_timestamp(batch, NOW + 11) == (1007, NOW + 30)
    assert native_batch.find_max_timestamp(batch) == (1007, NOW + 30)


@EACH_CODEC
@pytest.mark.parametrize("target", CODECS.values(), ids=CODECS)
def test_recompression_keeps_records_and_header(codec, target):
    batch = build(
        RECORDS * 50, codec=codec, producer_id=4, producer_epoch=1, base_sequence=8, base_offset=70
    )
    again = native_batch.recompress(batch, target)
    before, after = header(batch), header(again)
    assert after.attributes & 7 == target
    assert native_batch.crc_ok(again) and len(again) == after.batch_length + 12
    assert after[6:] == before[6:] and after.base_offset == 70
    assert records(again) == records(batch)


def test_recompression_respects_the_inflated_limit():
    with pytest.raises(BatchError) as raised:
        native_batch.recompress(build([(None, bytes(1 << 20), NOW, [])], codec=4), 1, None, 1 << 19)
    assert raised.value.code == TOO_LARGE


@EACH_CODEC
@pytest.mark.parametrize("target", CODECS.values(), ids=CODECS)
def test_recompression_respects_the_batch_size_limit(codec, target):
    batch = build(RECORDS * 50, codec=codec)
    again = native_batch.recompress(batch, target)
    assert native_batch.recompress(batch, target, bytes_max=len(again)) == again
    for bytes_max in (len(again) - 1, 61, 0):
        with pytest.raises(BatchError) as raised:
            native_batch.recompress(batch, target, bytes_max=bytes_max)
        assert raised.value.code == TOO_LARGE


def test_batch_that_no_log_could_read_is_too_large_for_any_topic():
    longest = 1 << 30
    head = patched(build(KEYED), 8, struct.pack(">i", longest - 12), mend_crc=False)[:61]
    assert header(head).batch_length == longest - 12
    whole = bytearray(longest + 1)
    whole[:61] = head
    assert check(whole)[1]["code"] == INVALID_RECORD  # a byte after the batch
    whole[8:12] = struct.pack(">i", longest + 1 - 12)
    assert check(whole)[1]["code"] == TOO_LARGE
    with pytest.raises(BatchError):
        header(whole[:61])
