"""Columns and Records of fetched bytes, compared with the records in the batches."""

import gc
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog._native.client.columns import (
    ColumnReader,
    Fetched,
    Record,
    RecordsError,
    fixed_width,
    records,
)
from pylog._native.records import batch as native_batch
from pylog._native.records.batch import CONTROL, TRANSACTIONAL, build
from tests.native.records.test_batch import (
    CODECS, EACH_CODEC, NOW, mended, patched, raw, record, varint,
)

KEYED = [(b"k%d" % i, b"v" * (i % 90), NOW + i, []) for i in range(200)]

_bytes = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=100, max_size=400))
_headers = st.lists(st.tuples(st.text(max_size=6), _bytes), max_size=3)
_record = st.tuples(_bytes, _bytes, st.integers(-1, 2**48), st.one_of(st.just([]), _headers))
_batches = st.lists(
    st.tuples(st.sampled_from(list(CODECS.values())), st.lists(_record, min_size=1, max_size=40)),
    max_size=4,
)


def joined(batches) -> tuple[bytes, list]:
    """Return the bytes of consecutive batches of (codec, records), and (offset, record) of all."""
    data, wanted, offset = b"", [], 0
    for codec, rows in batches:
        data += build(rows, base_offset=offset, codec=codec)
        wanted += [(offset + i, row) for i, row in enumerate(rows)]
        offset += len(rows) + 3
    return data, wanted


def binary_rows(offsets, data, validity, count) -> list:
    ends = np.frombuffer(offsets, dtype="<i4")
    bits = np.ones(count, dtype=bool)
    if validity is not None:
        bits = np.unpackbits(np.frombuffer(validity, dtype=np.uint8), bitorder="little")[:count]
    blob = bytes(data)
    return [blob[ends[i]:ends[i + 1]] if bits[i] else None for i in range(count)]


def column_rows(columns) -> list:
    """Return (offset, (key, value, timestamp, headers)) of each row."""
    count = columns.count
    keys = binary_rows(columns.key_offsets, columns.key_data, columns.key_validity, count)
    values = binary_rows(columns.value_offsets, columns.value_data, columns.value_validity, count)
    headers = [[] for _ in range(count)]
    if columns.header_offsets is not None:
        names = binary_rows(columns.header_key_offsets, columns.header_key_data, None,
                            columns.header_count)
        contents = binary_rows(columns.header_value_offsets, columns.header_value_data,
                               columns.header_value_validity, columns.header_count)
        ends = np.frombuffer(columns.header_offsets, dtype="<i4")
        pairs = [(name.decode(), content) for name, content in zip(names, contents)]
        headers = [pairs[ends[i]:ends[i + 1]] for i in range(count)]
    offsets = np.frombuffer(columns.offsets, dtype="<i8").tolist()
    times = np.frombuffer(columns.timestamps, dtype="<i8").tolist()
    return [(o, (k, v, t, h)) for o, k, v, t, h in zip(offsets, keys, values, times, headers)]


def read_columns(data, records_max=1 << 30, **options):
    reader = ColumnReader()
    fetched = Fetched(data, **options)
    reader.read(fetched, records_max)
    return column_rows(reader.finish()), fetched


def read_records(data, topic="t", **options):
    fetched = Fetched(data, **options)
    rows = [(r.offset, (r.key, r.value, r.timestamp, r.headers))
            for r in records(fetched, topic, 0, 1 << 30)]
    return rows, fetched


@settings(max_examples=150, deadline=None)
@given(_batches, st.integers(0, 60), st.integers(1, 50))
def test_columns_and_records_match_the_built_batches(batches, first, step):
    data, wanted = joined(batches)
    wanted = [(offset, row) for offset, row in wanted if offset >= first]
    fetched, reader, found = Fetched(data, next_offset=first), ColumnReader(), []
    while reader.read(fetched, step) or not fetched.exhausted:
        found += column_rows(reader.finish())
    assert found == wanted
    assert read_records(data, next_offset=first)[0] == wanted
    assert read_columns(data, next_offset=first)[0] == wanted


@EACH_CODEC
def test_record_larger_than_the_inflaters_window_is_read_completely(codec):
    rows = [(b"a", b"x" * 10, NOW, []), (b"b", bytes(range(256)) * 3000, NOW, [("h", b"y" * 9)]),
            (b"c", b"z" * 10, NOW, [])]
    data = build(rows, codec=codec)
    assert read_columns(data)[0] == list(enumerate(rows))
    assert read_records(data)[0] == list(enumerate(rows))


@EACH_CODEC
def test_reading_resumes_inside_a_batch(codec):
    data = build(KEYED, base_offset=50, codec=codec)
    fetched, reader = Fetched(data), ColumnReader()
    assert reader.read(fetched, 7) == 7
    assert fetched.next_offset == 57
    assert [r.offset for r in records(fetched, "t", 0, 3)] == [57, 58, 59]
    assert reader.read(fetched, 1000) == 190
    assert fetched.exhausted and fetched.next_offset == 250
    offsets = [offset for offset, _ in column_rows(reader.finish())]
    assert offsets == [*range(50, 57), *range(60, 250)]


def test_truncated_batch_ends_the_data():
    whole = build(KEYED)
    rows, fetched = read_columns(whole + build(KEYED, base_offset=200)[:-1])
    assert len(rows) == 200 and fetched.exhausted and fetched.next_offset == 200
    assert not fetched.is_cut
    for size in (1, 16, 60, 61, len(whole) - 1):
        rows, fetched = read_columns(whole[:size])
        assert rows == [] and fetched.exhausted and fetched.is_cut


def test_empty_input_has_no_records():
    rows, fetched = read_columns(b"")
    assert rows == [] and fetched.exhausted and not fetched.is_cut and fetched.next_offset == 0


def test_position_skips_a_gap_at_the_end_of_a_batch():
    data = bytearray(build(KEYED[:3]))
    struct.pack_into(">i", data, 23, 9)
    rows, fetched = read_columns(mended(data), records_max=3)
    assert len(rows) == 3 and fetched.next_offset == 10 and fetched.exhausted


def test_a_compacted_batch_without_records_moves_the_position():
    head = bytearray(build(KEYED[:1])[:61])
    struct.pack_into(">i", head, 23, 4)
    struct.pack_into(">i", head, 57, 0)
    rows, fetched = read_columns(mended(head))
    assert rows == [] and fetched.next_offset == 5


def test_log_append_time_replaces_every_timestamp():
    data = bytearray(build(KEYED))
    native_batch.stamp_append_time(data, 77)
    rows, _ = read_columns(bytes(data))
    assert {row[2] for _, row in rows} == {77}
    assert records(Fetched(bytes(data)), "t", 0, 1)[0].timestamp_type == 1
    assert records(Fetched(build(KEYED)), "t", 0, 1)[0].timestamp_type == 0


# ---- transactions


def marker(kind: int, offset: int, producer_id: int) -> bytes:
    return build([(struct.pack(">hh", 0, kind), b"\0" * 6, NOW, [])], base_offset=offset,
                 producer_id=producer_id, producer_epoch=0, attributes=CONTROL | TRANSACTIONAL)


def transactional(offset: int, producer_id: int, count: int = 2) -> bytes:
    return build(KEYED[:count], base_offset=offset, producer_id=producer_id, producer_epoch=0,
                 base_sequence=0, attributes=TRANSACTIONAL)


def test_read_committed_skips_aborted_records_and_markers():
    data = b"".join([
        transactional(0, 1), transactional(2, 2), marker(0, 4, 1), transactional(5, 1),
        marker(1, 7, 1), marker(1, 8, 2), build(KEYED[:1], base_offset=9), marker(0, 10, 9),
    ])
    aborted = [(1, 0)]
    for read in (read_columns, read_records):
        rows, fetched = read(data, aborted=aborted, read_committed=True)
        assert [offset for offset, _ in rows] == [2, 3, 5, 6, 9]
        assert fetched.next_offset == 11 and fetched.exhausted
        rows, fetched = read(data, aborted=aborted)
        assert [offset for offset, _ in rows] == [0, 1, 2, 3, 5, 6, 9]


def test_two_aborted_transactions_of_one_producer_are_distinguished():
    data = b"".join([
        transactional(0, 1), marker(0, 2, 1), transactional(3, 1), marker(1, 5, 1),
        transactional(6, 1), marker(0, 8, 1), transactional(9, 1),
    ])
    rows, _ = read_columns(data, aborted=[(1, 6), (1, 0)], read_committed=True)
    assert [offset for offset, _ in rows] == [3, 4, 9, 10]


def test_aborted_transaction_from_before_the_position_is_skipped():
    data = transactional(0, 1, 5) + transactional(5, 1) + marker(0, 7, 1)
    rows, fetched = read_columns(data, next_offset=3, aborted=[(1, 0)], read_committed=True)
    assert rows == [] and fetched.next_offset == 8


# ---- damage


def test_wrong_checksum_is_reported_with_its_offset_after_good_batches():
    good, bad = build(KEYED), bytearray(build(KEYED, base_offset=200))
    bad[-2] ^= 1
    fetched, reader = Fetched(good + bytes(bad)), ColumnReader()
    assert reader.read(fetched, 1000) == 200
    with pytest.raises(RecordsError) as raised:
        reader.read(fetched, 1000)
    assert raised.value.code == 2 and raised.value.offset == 200
    fetched = Fetched(good + bytes(bad))
    assert len(records(fetched, "t", 0, 1000)) == 200
    with pytest.raises(RecordsError):
        records(fetched, "t", 0, 1000)
    assert len(read_columns(good + bytes(bad), check_crc=False)[0]) == 400


BROKEN = {
    "a count above the records": raw(record(), count=2),
    "a count below the records": raw(record(), record(1), count=1),
    "a negative count": patched(raw(record()), 57, struct.pack(">i", -1)),
    "a length past the end": raw(record(length=100)),
    "a length too small": raw(record(length=3)),
    "a negative length": raw(record(length=-5)),
    "a key past the end": raw(record(key=varint(50))),
    "a key below null": raw(record(key=varint(-2))),
    "a value past the end": raw(record(value=varint(3) + b"v")),
    "headers below zero": raw(record(headers=varint(-1))),
    "more headers than bytes": raw(record(headers=varint(1000))),
    "a header without key": raw(record(headers=varint(1) + varint(-1) + varint(0))),
    "bytes behind the headers": raw(record(headers=varint(0) + b"x")),
    "an endless varint": raw(b"\xff" * 20),
    "a negative base offset": patched(raw(record()), 0, struct.pack(">q", -5), False),
    "a negative last offset delta": patched(raw(record()), 23, struct.pack(">i", -5)),
    "offsets beyond 63 bits": patched(raw(record()), 0, struct.pack(">q", 2**63 - 1), False),
    "an offset delta past the last": raw(record(), record(5)),
    "offset deltas that fall": raw(record(1), record(0)),
    "one offset delta twice": raw(record(1), record(1)),
    "the largest offset delta twice": patched(
        raw(record(2**31 - 1), record(2**31 - 1)), 23, struct.pack(">i", 2**31 - 1)),
    "an unknown codec": patched(raw(record()), 21, struct.pack(">h", 7)),
    "an old magic": patched(raw(record()), 16, b"\1", False),
    "an unknown magic": patched(raw(record()), 16, b"\7", False),
    "a length below a batch's": patched(raw(record()), 8, struct.pack(">i", 3), False),
    "bytes that do not inflate": mended(raw(record(), codec=4)[:-3]),
    "compressed records cut short": raw(record()[:-1], codec=3),
    "compressed bytes behind the records": raw(record() + b"more", codec=3),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_invalid_bytes_raise_records_error(data):
    with pytest.raises(RecordsError):
        reader, fetched = ColumnReader(), Fetched(data)
        while reader.read(fetched, 10):
            pass
    with pytest.raises(RecordsError):
        fetched = Fetched(data)
        while records(fetched, "t", 0, 10):
            pass


def test_duplicate_offset_is_rejected_when_reading_single_records():
    fetched, reader = Fetched(BROKEN["the largest offset delta twice"]), ColumnReader()
    assert reader.read(fetched, 1) == 1
    with pytest.raises(RecordsError):
        while reader.read(fetched, 1):
            pass
    assert fetched.next_offset == 2**31


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_gives_rows_or_records_error_and_never_moves_back(draw):
    data = bytearray(joined(draw.draw(_batches))[0] or b"\0" * 70)
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    fetched, reader, position = Fetched(bytes(data), check_crc=False), ColumnReader(), 0
    try:
        while reader.read(fetched, 5) or not fetched.exhausted:
            assert fetched.next_offset > position
            position = fetched.next_offset
    except RecordsError:
        pass
    column_rows(reader.finish())


def test_decompression_bomb_is_stopped_at_the_limit():
    data = build([(None, b"\0" * 5_000_000, NOW, [])], codec=4)
    with pytest.raises(RecordsError) as raised:
        read_columns(data, inflated_bytes_max=1_000_000)
    assert raised.value.code == 10


# ---- columns


@pytest.mark.parametrize("first", [1024, 1025, 1030, 1100, 2049])
def test_reader_grows_beyond_its_initial_capacity_without_losing_values(first):
    """After finish(), the initial capacity equals the last size, rarely whole bytes."""
    def rows(count, salt):
        return [(None if (i + salt) % 3 == 0 else b"k%d" % i, None if (i + salt) % 5 == 0 else b"v",
                 NOW, [("h", None if i % 2 else b"x")]) for i in range(count)]

    reader = ColumnReader()
    reader.read(Fetched(build(rows(first, 0))), 1 << 30)
    reader.finish()
    wanted = rows(first * 3, 1)
    reader.read(Fetched(build(wanted)), 1 << 30)
    assert [row for _, row in column_rows(reader.finish())] == wanted


@pytest.mark.parametrize("headers", [(), (130,)])
@pytest.mark.parametrize("step", [1, 63, 300])
@pytest.mark.parametrize("is_null", [lambda i: False, lambda i: i % 3 == 0, lambda i: True])
def test_records_in_bulk_equal_single_records(headers, step, is_null):
    rows = [(None if is_null(i) else b"k%d" % i, None if is_null(i + 1) else b"v" * (i % 70),
             NOW + i, [("h", b"x")] if i in headers else []) for i in range(300)]
    fetched, reader = Fetched(build(rows, base_offset=5), next_offset=8), ColumnReader()
    reader.read(Fetched(build(rows[:3])), 3)  # From a row that does not begin a byte of bits.
    while reader.read(fetched, step):
        pass
    columns = reader.finish()
    assert column_rows(columns)[3:] == [(5 + i, row) for i, row in enumerate(rows) if i >= 3]
    assert columns.key_null_count == sum(map(is_null, range(300)))
    assert columns.runs == [(0, 300)]


def test_full_reader_continues_after_finish():
    data = build([(b"k", b"v" * 100, NOW, [])] * 10)
    fetched, reader, found = Fetched(data), ColumnReader(bytes_max=250), []
    while not fetched.exhausted:
        count = reader.read(fetched, 1000)
        assert count == 2 and (reader.full or fetched.exhausted)
        found += column_rows(reader.finish())
    assert [offset for offset, _ in found] == list(range(10))


def test_record_above_the_limit_leaves_an_empty_reader_full():
    fetched, reader = Fetched(build([(b"k", b"v" * 100, NOW, [])])), ColumnReader(bytes_max=50)
    assert reader.read(fetched, 10) == 0 and reader.full and reader.count == 0


def test_runs_and_spread_distinguish_the_sources():
    reader = ColumnReader()
    for source, count in ((4, 3), (4, 2), (0, 1)):
        reader.read(Fetched(build(KEYED[:count]), source=source), 100)
    columns = reader.finish()
    assert columns.runs == [(4, 5), (0, 1)]
    spread = np.frombuffer(columns.spread([7, 0, 0, 0, 9]), dtype="<i4")
    assert spread.tolist() == [9] * 5 + [7]
    with pytest.raises(IndexError):
        columns.spread([1])


def test_headers_can_be_omitted():
    reader = ColumnReader(headers=False)
    reader.read(Fetched(build([(None, b"v", NOW, [("a", b"b")])])), 10)
    columns = reader.finish()
    assert columns.header_offsets is None and columns.count == 1


def test_header_key_with_invalid_utf8_is_replaced():
    bad = record(headers=varint(1) + varint(4) + b"a\xff\xedb" + varint(1) + b"x")
    rows, _ = read_columns(raw(bad))
    assert rows[0][1][3] == [("a\ufffd\ufffdb", b"x")]
    assert read_records(raw(bad))[0][0][1][3] == [("a\ufffd\ufffdb", b"x")]


def test_buffers_survive_their_reader_and_columns():
    reader = ColumnReader()
    reader.read(Fetched(build(KEYED)), 1000)
    columns = reader.finish()
    offsets = np.frombuffer(columns.offsets, dtype="<i8")
    del reader, columns
    gc.collect()
    assert offsets.tolist() == list(range(200))
    with pytest.raises(ValueError):
        offsets[0] = 1


def test_an_empty_finish_has_buffers_too():
    columns = ColumnReader().finish()
    assert columns.count == 0 and columns.runs == []
    assert np.frombuffer(columns.key_offsets, dtype="<i4").tolist() == [0]


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<i4", ">f8", ">f4", "<u2", "u1"])
def test_fixed_width_values_become_a_plain_array(dtype):
    wanted = np.arange(5).astype(dtype)
    rows = [(None, wanted[i:i + 1].tobytes() if i != 3 else None, NOW, []) for i in range(5)]
    reader = ColumnReader()
    reader.read(Fetched(build(rows)), 10)
    c = reader.finish()
    out = fixed_width(c.value_offsets, c.value_data, c.value_validity, 5, wanted.itemsize,
                      dtype[0] == ">")
    found = np.frombuffer(out, dtype=wanted.dtype.newbyteorder("<"))
    assert found.tolist() == [0, 1, 2, 0, 4]
    sliced = fixed_width(c.value_offsets, c.value_data, c.value_validity, 2, wanted.itemsize,
                         dtype[0] == ">", 3)
    assert np.frombuffer(sliced, dtype=wanted.dtype.newbyteorder("<")).tolist() == [0, 4]


def test_fixed_width_rejects_invalid_lengths():
    reader = ColumnReader()
    reader.read(Fetched(build(KEYED[:5])), 10)
    c = reader.finish()
    with pytest.raises(ValueError, match="bytes long"):
        fixed_width(c.value_offsets, c.value_data, None, 5, 8, False)
    with pytest.raises(ValueError, match="fewer"):
        fixed_width(c.value_offsets, c.value_data, None, 50, 8, False)
    hostile = struct.pack("<3i", 0, 8, 1 << 20)
    with pytest.raises(ValueError, match="leave"):
        fixed_width(hostile, b"x" * 8, None, 2, 8, False)


# ---- records


def test_record_has_its_fields():
    data = build([(b"k", None, NOW, [("h", b"x"), ("n", None)])], base_offset=4, leader_epoch=3)
    (found,) = records(Fetched(data), "topic", 6, 10)
    assert (found.topic, found.partition, found.offset, found.timestamp) == ("topic", 6, 4, NOW)
    assert (found.key, found.value, found.leader_epoch) == (b"k", None, 3)
    assert found.headers == [("h", b"x"), ("n", None)]
    found.value = {"any": "thing"}
    assert found.value == {"any": "thing"}
    made = Record("topic", 6, 4, NOW, 0, b"k", {"any": "thing"}, [("h", b"x"), ("n", None)], 3)
    assert made == found and hash(made) == hash(found) and "topic" in repr(made)


def test_records_survive_their_source_bytes():
    data = bytearray(build([(b"key", b"value", NOW, [("h", b"x")])] * 3, codec=4))
    found = records(Fetched(data), "t", 0, 10)
    data[:] = bytes(len(data))
    assert found[2].value == b"value" and found[2].headers == [("h", b"x")]


def test_partly_read_bytes_in_a_garbage_cycle_do_not_crash():
    """CPython clears an exported memoryview that is part of the cycle."""
    class Holder:
        pass

    for _ in range(20):
        holder = Holder()
        holder.self = holder
        holder.frame = bytearray(b"??" + build([(b"k", b"v", NOW, [])] * 5))
        holder.data = memoryview(holder.frame)[2:]
        holder.fetched = Fetched(holder.data)
        assert len(records(holder.fetched, "t", 0, 1)) == 1
        del holder
        gc.collect()
