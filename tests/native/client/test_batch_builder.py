"""Batches built from records and from columns, verified by the broker's checks."""

import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python
from pylog._native.client.batch_builder import (
    BatchBuilder, BatchWriter, Column, Pool, RowError, copied, crc32, murmur2, seal,
)
from pylog._native.records.batch import TRANSACTIONAL, build, check, crc_ok, header, records

from tests.native.records.test_batch import EACH_CODEC, NOW

_bytes = st.one_of(st.none(), st.binary(max_size=30), st.binary(min_size=120, max_size=300))
_headers = st.lists(st.tuples(st.text(max_size=5), _bytes), max_size=3)
_row = st.tuples(_bytes, _bytes, st.integers(-1, 2**42), _headers)


def column(values, kind=None):
    array = values if isinstance(values, (pa.Array)) else pa.array(values, kind or pa.binary())
    validity, offsets, data = array.buffers()
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    offsets = bytes(8) if offsets is None else offsets
    return Column(len(array), offsets, data, validity, 8 if wide else 4, array.offset)


def headers_of(rows):
    flat = [pair for headers in rows for pair in headers]
    ends = np.cumsum([0] + [len(headers) for headers in rows], dtype=np.int32)
    return (ends, column([key for key, _ in flat], pa.utf8()), column([v for _, v in flat]))


def read(batches) -> dict:
    """Return the rows of each partition's batches, which the broker must accept."""
    found = {}
    for batch in batches:
        error, summary = check(batch)
        assert error == 0, summary["text"]
        rows = records(batch)
        assert batch.record_count == len(rows)
        assert batch.max_timestamp == max(row[1] for row in rows) == header(batch).max_timestamp
        found.setdefault(batch.partition, []).extend((k, v, t, h) for _, t, k, v, h in rows)
    return found


# ---- record by record


@settings(max_examples=150, deadline=None)
@given(st.lists(_row, min_size=1, max_size=30), st.integers(0, 4))
def test_builder_and_build_make_the_same_batch(rows, codec):
    builder = BatchBuilder(1 << 20, 7)
    for i, (key, value, timestamp, headers) in enumerate(rows):
        assert builder.append(key, value, timestamp, headers) == i
    batch = builder.close(codec)
    wanted = build(rows, codec=codec)
    assert bytes(batch) == wanted and len(batch) == len(wanted) and batch.partition == 7
    assert builder.count == 0


def test_full_builder_accepts_no_records_until_it_is_closed():
    builder = BatchBuilder(200)
    assert builder.append(b"k", b"v" * 70, NOW) == 0
    assert builder.append(b"k", b"v" * 70, NOW) == -1
    assert builder.nbytes <= 200 and builder.count == 1
    assert len(records(builder.close())) == 1
    assert builder.append(b"k", b"v" * 70, NOW) == 0


@EACH_CODEC
def test_record_longer_than_a_batch_gets_its_own_batch(codec):
    builder = BatchBuilder(200)
    assert builder.append(None, b"v" * 5000, NOW) == 0
    assert builder.append(None, b"v", NOW) == -1
    assert check(builder.close(codec))[0] == 0
    assert builder.append(None, b"v", NOW) == 0


def test_any_buffer_can_be_key_or_value_and_headers_a_mapping():
    builder = BatchBuilder(1 << 16)
    builder.append(bytearray(b"k"), memoryview(b"value")[1:], NOW, {"a": b"1", "b": None})
    builder.append(np.array([1], dtype="u1"), None, NOW, (("c", "text"),))
    rows = records(builder.close())
    assert [row[2:] for row in rows] == [
        (b"k", b"alue", [("a", b"1"), ("b", None)]), (b"\1", None, [("c", b"text")])]
    with pytest.raises(TypeError):
        builder.append("text", None, NOW)
    with pytest.raises(TypeError):
        builder.append(None, 5, NOW)
    assert builder.count == 0
    with pytest.raises(ValueError):
        builder.close()


def test_batch_can_be_stamped_for_its_producer_repeatedly():
    builder = BatchBuilder(1 << 16)
    builder.append(b"k", b"v", NOW)
    batch = builder.close(3)
    for epoch, transactional in ((0, True), (1, False)):
        batch.stamp(77, epoch, 5, transactional)
        found = header(batch)
        assert (found.producer_id, found.producer_epoch, found.base_sequence) == (77, epoch, 5)
        assert bool(found.attributes & 0x10) == transactional
        assert check(batch)[0] == 0


def test_unknown_codecs_are_rejected():
    builder = BatchBuilder(1 << 16)
    builder.append(b"k", b"v", NOW)
    with pytest.raises(ValueError, match="codec"):
        builder.close(9)
    assert builder.count == 1 and len(records(builder.close(0))) == 1


# ---- hashes


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_hashes_match_java_and_librdkafka(key):
    assert murmur2(key) == murmur2_of_kafka_python(key) & 0x7FFFFFFF
    assert crc32(key) == zlib.crc32(key)


# ---- columns


@settings(max_examples=150, deadline=None)
@given(st.lists(_row, max_size=60), st.integers(1, 5), st.integers(70, 600), st.integers(0, 4),
       st.data())
def test_rows_reach_their_partition_in_order(rows, partition_count, bytes_max, codec, draw):
    kind = draw.draw(st.sampled_from([pa.binary(), pa.large_binary()]))
    keys, values = (column([row[i] for row in rows], kind) for i in (0, 1))
    writer = BatchWriter(partition_count, bytes_max, codec)
    times = np.array([row[2] for row in rows], dtype=np.int64)
    row, batches = 0, []
    while row < len(rows):
        row = writer.write(row, len(rows), key=keys, value=values, timestamps=times,
                           headers=headers_of([row[3] for row in rows]),
                           closed_bytes_max=draw.draw(st.integers(0, 300)))
        batches += writer.take()
    writer.flush()
    found = read(batches + writer.take())
    for partition in range(partition_count):
        keyed = [row for row in rows if row[0] is not None
                 and murmur2(row[0]) % partition_count == partition]
        assert [row for row in found.get(partition, []) if row[0] is not None] == keyed
    without = [row for rows in found.values() for row in rows if row[0] is None]
    assert sorted(map(repr, without)) == sorted(repr(row) for row in rows if row[0] is None)


def test_partition_column_overrides_the_key_except_minus_one():
    partitions = np.array([2, 0, 2, -1, 1], dtype=np.int32)
    writer = BatchWriter(3, 1 << 16)
    values = [b"%d" % i for i in range(5)]
    writer.write(0, 5, key=column([b"k"] * 5), value=column(values), now=NOW,
                 partitions=partitions)
    writer.flush()
    found = {p: [row[1] for row in rows] for p, rows in read(writer.take()).items()}
    wanted = {2: [b"0", b"2"], 0: [b"1"], 1: [b"4"]}
    wanted[murmur2(b"k") % 3] = sorted([*wanted[murmur2(b"k") % 3], b"3"])
    assert {p: sorted(v) for p, v in found.items()} == wanted


def test_null_keys_stay_with_a_partition_until_its_batch_is_full():
    writer = BatchWriter(3, 400, sticky=[2, 0])
    writer.write(0, 12, value=column([b"v" * 100] * 12), now=NOW)
    writer.flush()
    batches = writer.take()
    assert [batch.partition for batch in batches] == [2, 0, 2, 0, 2, 0][:len(batches)]
    assert all(batch.record_count == 3 for batch in batches)


def test_rows_of_a_sliced_column_are_those_of_the_slice():
    whole = pa.array([b"a", None, b"ccc", b"dd", b""], pa.binary())
    writer = BatchWriter(1, 1 << 16)
    writer.write(0, 3, value=column(whole.slice(1, 3)), now=NOW)
    writer.flush()
    assert [row[1] for row in read(writer.take())[0]] == [None, b"ccc", b"dd"]


def test_strings_are_sent_as_their_utf8():
    writer = BatchWriter(1, 1 << 16)
    for kind in (pa.utf8(), pa.large_utf8()):
        writer.write(0, 2, value=column(["grün", None], kind), now=NOW)
    writer.flush()
    assert [row[1] for row in read(writer.take())[0]] == ["grün".encode(), None] * 2


def test_bad_row_is_reported_and_earlier_rows_are_kept():
    writer = BatchWriter(2, 1 << 16, record_bytes_max=50)
    good = column([b"v"] * 3)
    with pytest.raises(RowError) as raised:
        writer.write(0, 3, value=good, now=NOW, partitions=np.array([0, 1, 2], dtype=np.int32))
    assert raised.value.row == 2 and not raised.value.too_large
    with pytest.raises(RowError) as raised:
        writer.write(0, 2, value=column([b"v", b"v" * 51]), now=NOW)
    assert raised.value.row == 1 and raised.value.too_large
    writer.flush()
    assert sum(map(len, read(writer.take()).values())) == 3


@pytest.mark.parametrize("ends", [(0, 5, 3), (0, 2, 9), (-1, 2, 3), (2**31 - 1, 0, 0)])
def test_offsets_outside_a_column_are_rejected(ends):
    broken = Column(2, struct.pack("<3i", *ends), b"12345", None)
    with pytest.raises(RowError):
        BatchWriter(1, 1000).write(0, 2, value=broken, now=NOW)


def test_short_buffers_are_rejected():
    with pytest.raises(ValueError):
        Column(5, bytes(20), b"", None)
    with pytest.raises(ValueError):
        Column(9, bytes(40), b"", b"\xff")
    writer = BatchWriter(1, 1000)
    with pytest.raises(ValueError):
        writer.write(0, 3, value=column([b"v"] * 2))
    with pytest.raises(ValueError):
        writer.write(0, 2, value=column([b"v"] * 2), timestamps=np.zeros(1, dtype=np.int64))
    with pytest.raises(ValueError):
        writer.write(0, 2, value=column([b"v"] * 2), headers=(
            np.array([0, 0], dtype=np.int32), column([]), column([])))


def test_header_without_key_is_rejected():
    headers = (np.array([0, 1], dtype=np.int32), column([None]), column([b"x"]))
    with pytest.raises(RowError):
        BatchWriter(1, 1000).write(0, 1, value=column([b"v"]), headers=headers)


def test_memory_of_freed_batches_is_reused_up_to_a_limit():
    pool = Pool(100_000)
    for _ in range(3):
        builder = BatchBuilder(1 << 16, 0, pool)
        made = []
        while len(made) < 4:
            if builder.append(b"key", b"v" * 5000, NOW) < 0:
                made.append(builder.close())
        seal(made)
        views = [memoryview(batch) for batch in made]
        assert len({bytes(view) for view in views}) == 1
        del made
        assert pool.nbytes == 0  # Views keep their memory alive.
        del views, builder
        assert 60_000 < pool.nbytes <= 100_000


def test_sealing_many_batches_gives_each_its_own_checksum():
    builder, made = BatchBuilder(1 << 16), []
    for number in range(100):
        builder.append(None, bytes([number]) * (4000 if number % 3 else 9), NOW)
        made.append(builder.close())
        made[-1].stamp(7, 1, number)
    seal(made)
    seal(made)
    for number, batch in enumerate(made):
        assert crc_ok(batch) and header(batch).base_sequence == number


def test_copied_batch_has_the_records_but_no_producer_and_no_offset():
    source = build([(b"k", b"v", 1_700_000_000_000, [("h", b"x")])] * 3, base_offset=70,
                   codec=4, producer_id=9, producer_epoch=2, base_sequence=5,
                   attributes=TRANSACTIONAL, leader_epoch=8)
    copy = copied(memoryview(source), 3)
    found = header(bytes(copy))
    assert (copy.partition, copy.record_count, copy.nbytes) == (3, 3, len(source))
    assert (found.base_offset, found.leader_epoch, found.producer_id) == (0, -1, -1)
    assert found.attributes == 4 and copy.max_timestamp == 1_700_000_000_000
    assert [row[2:] for row in records(bytes(copy))] == [
        row[2:] for row in records(source)]
    assert crc_ok(bytes(copy))


def test_only_whole_and_valid_batches_are_copied():
    source = build([(b"k", b"v", 0, [])])
    damaged = bytearray(source)
    damaged[-2] ^= 1
    for data in (b"", source[:-1], source + b"\0", source * 2, bytes(damaged)):
        with pytest.raises(ValueError):
            copied(data, 0)
