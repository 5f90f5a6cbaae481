"""Compaction, truncation, retention and time lookups in a damaged log lose no further records.

Records that were readable before are readable afterwards.
"""

import os
import struct

import pytest

from pylog._native.log import compaction, damage_report, log, replica_move
from pylog._native.records import batch
from tests.native.log.test_compaction import append, cleaned, fill
from tests.native.log.test_damage import files, spoil
from tests.native.log.test_log import NOW, TOPIC_ID, checkpoint_of, make, opened

COMPACT = {"cleanup.policy": "compact", "segment.bytes": 4000, "index.interval.bytes": 300}
SMALL = {"internal.segment.bytes": 4_000, "index.interval.bytes": 300}


def crc_is_right(content, position):
    """Return bytes that cannot be decompressed, with a correct CRC: codec gzip, and no gzip data.
    """
    length = struct.unpack_from(">i", content, position + 8)[0]
    body = bytearray(content[position:position + 12 + length])
    body[22] |= 1
    body[17:21] = struct.pack(">I", batch.crc32c(bytes(body[21:])))
    return bytes(body)


DAMAGES = {
    "length": (8, b"\xff" * 4), "magic": (16, b"\x07"), "zeros": (0, bytes(61)),
    "random": (0, bytes(range(7, 107))), "payload": (75, b"\xa5\x5a\x01"),
    "several": (40, bytes(700)), "inflate": (0, crc_is_right),
    "long": (8, lambda content, position: struct.pack(
        ">i", 3 * struct.unpack_from(">i", content, position + 8)[0])),
}


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


def survey(one):
    """Return (offsets lost to damage, {offset: record} of the readable records)."""
    gone, rows, offset = [], {}, one.start_offset
    while offset < one.end_offset:
        try:
            data = one.read(offset, 1)
        except log.CorruptLog:
            gone.append(offset)
            offset += 1
            continue
        _, header = next(iter(batch.walk(data)))
        if batch.crc_ok(data) and header.record_count:
            try:
                rows.update({row[0]: row[1:4] for row in batch.records(data)})
            except batch.BatchError:
                rows[header.base_offset] = bytes(data)
        elif header.record_count:
            rows[header.base_offset] = bytes(data)
        offset = max(offset, header.base_offset + header.last_offset_delta) + 1
    return gone, rows


def newest(rows):
    """Return the readable records that compaction keeps."""
    last = {row[1]: offset for offset, row in sorted(rows.items()) if isinstance(row, tuple)}
    return {offset: row for offset, row in rows.items()
            if not isinstance(row, tuple) or last[row[1]] == offset}


def keyed(directory, count=300):
    one = log.Log.open(directory, "t", 0, TOPIC_ID, COMPACT, now_ms=NOW)
    one.become_leader(0)
    for number in range(count):
        append(one, [(b"k%d" % ((number * 7 + at) % 41), b"%d" % number * 9) for at in range(2)])
    return one


def closed(one):
    one.settle(NOW)
    saved = checkpoint_of(one)
    one.close(NOW)
    return saved


def reopened(directory, saved, config=COMPACT):
    one = log.Log.open(directory, "t", 0, TOPIC_ID, config, now_ms=NOW, **saved)
    one.become_leader(0)
    return one


@pytest.mark.parametrize("place", [(1, 3), (0, 0), (2, -1)], ids=["middle", "begin", "end"])
@pytest.mark.parametrize("how", DAMAGES)
def test_compaction_keeps_readable_records_and_damage(
        directory, tmp_path, how, place):
    saved = closed(keyed(directory))
    spoil(files(tmp_path)[place[0]], place[1], *DAMAGES[how])
    one = reopened(directory, saved)
    survey(one)  # A read across the damage detects it; bytes before it may look like a batch.
    gone, rows = survey(one)
    active = int(files(tmp_path)[-1].stem)
    figures = cleaned(one)
    # The active segment is not cleaned, and its records do not supersede any yet.
    kept = newest({offset: row for offset, row in rows.items() if offset < active})
    kept.update({offset: row for offset, row in rows.items() if offset >= active})
    assert survey(one) == (gone, kept)
    assert figures["records_kept"] < figures["records_read"] / 3
    assert (figures["bytes_damaged"] > 0) == (how != "inflate")
    told, = damage_report.take(directory)
    assert told.kind == "kept"
    # Another pass changes nothing, and neither does a restart.
    append(one, [(b"k1", b"new")])
    fill(one)
    cleaned(one)
    assert survey(one)[0] == gone
    rows = survey(one)[1]
    point = one.end_offset
    one.close(NOW)
    one = reopened(directory, {"recovery_point": point})
    assert survey(one) == (gone, rows)


@pytest.mark.parametrize("how", ["zeros", "payload", "length"])
def test_damage_in_clean_segments_is_kept_by_the_next_pass(directory, tmp_path, how):
    one = keyed(directory)
    first = cleaned(one)
    fill(one)
    saved = closed(one)
    assert len(files(tmp_path)) > 3
    # Of the earlier batches only an empty one remains.
    spoil(next(file for file in files(tmp_path) if file.stat().st_size > 500), 5, *DAMAGES[how])
    one = reopened(directory, saved)
    gone, rows = survey(one)
    append(one, [(b"k%d" % number, b"newer") for number in range(41)])
    fill(one)
    # A group of several clean segments restarts at the damage.
    figures = cleaned(one, first_dirty=first["end_offset"], segment_bytes=20_000)
    after = survey(one)
    assert after[0] == gone and figures["bytes_damaged"] > 0
    assert [row[2] for row in after[1].values() if isinstance(row, tuple)
            and row[1] != b"filler"] == [b"newer"] * 41
    assert [row for row in after[1].values() if isinstance(row, bytes)] == [
        row for row in rows.values() if isinstance(row, bytes)]


@pytest.mark.parametrize("how", ["zeros", "payload", "length"])
def test_interrupted_swap_of_a_damaged_segment_replaces_no_other(
        directory, tmp_path, how):
    saved = closed(keyed(directory))
    damaged = files(tmp_path)[1]
    spoil(damaged, -1, *DAMAGES[how])
    one = reopened(directory, saved)
    cleaned(one)
    expected = survey(one)
    point = one.end_offset
    one.close(NOW)
    os.rename(damaged, damaged.with_suffix(".log.swap"))
    one = reopened(directory, {"recovery_point": point})
    assert survey(one) == expected


@pytest.mark.parametrize("by", [1 << 40, 300, 1])
def test_record_with_a_wrong_offset_supersedes_nothing(directory, tmp_path, by):
    saved = closed(keyed(directory))
    base = int(files(tmp_path)[1].stem) + 4
    _, header = spoil(files(tmp_path)[1], 2, 0, struct.pack(">q", base + by))
    assert header.base_offset == base
    one = reopened(directory, saved)
    rows = {offset: row for offset, row in survey(one)[1].items() if not base <= offset < base + 2}
    try:
        cleaned(one)
    except compaction.Interrupted:
        # It was treated as intact until the next batch contradicted it; now the damage is known.
        cleaned(one)
    gone, after = survey(one)
    assert set(gone) <= {base, base + 1}
    active = int(files(tmp_path)[-1].stem)
    assert newest({offset: row for offset, row in rows.items() if offset < active}).items() <= \
        after.items()


def numbered(directory, config=SMALL):
    """Return a log with 60 batches of 2 records, 10 ms apart."""
    one = opened(directory, config=config)
    for number in range(60):
        one.append(make(2, now=NOW + 10 * number), NOW)
    one.flush()
    return one


@pytest.mark.parametrize("how", ["length", "zeros", "long", "several"])
def test_truncation_inside_a_hole_removes_the_hole(directory, tmp_path, how):
    saved = closed(numbered(directory))
    _, header = spoil(files(tmp_path)[1], 2, *DAMAGES[how])
    one = reopened(directory, saved, SMALL)
    gone, rows = survey(one)
    one.truncate(header.base_offset + 1)
    assert one.end_offset == header.base_offset
    assert survey(one) == ([], {offset: row for offset, row in rows.items()
                                if offset < header.base_offset})
    assert one.append(make(1), NOW)[0] == header.base_offset
    one.close(NOW)
    assert reopened(directory, {}, SMALL).end_offset == header.base_offset + 1


def test_truncation_after_a_hole_keeps_it(directory, tmp_path):
    saved = closed(numbered(directory))
    _, header = spoil(files(tmp_path)[1], 2, *DAMAGES["zeros"])
    one = reopened(directory, saved, SMALL)
    one.truncate(header.base_offset + 4)
    gone, rows = survey(one)
    assert gone == [header.base_offset, header.base_offset + 1]
    assert one.end_offset == max(rows) + 1 == header.base_offset + 4


@pytest.mark.parametrize("how", ["length", "zeros", "payload", "long", "inflate"])
def test_times_after_damage_are_found(directory, tmp_path, how):
    saved = closed(numbered(directory))
    _, header = spoil(files(tmp_path)[1], 2, *DAMAGES[how])
    one = reopened(directory, saved, SMALL)
    number = header.base_offset // 2
    assert one.offset_for_time(NOW + 10 * (number - 1))[0] == header.base_offset - 2
    assert one.offset_for_time(NOW + 10 * number)[0] == header.base_offset + 2
    assert one.offset_of_max_time()[:2] == (119, NOW + 10 * 59 + 1)


@pytest.mark.parametrize("start", ["clean", "unclean"])
@pytest.mark.parametrize("how", ["length", "zeros", "payload", "inflate"])
def test_latest_time_belongs_to_a_readable_record(directory, tmp_path, how, start):
    saved = closed(numbered(directory))
    _, header = spoil(files(tmp_path)[-1], -1, *DAMAGES[how])
    if start == "unclean":
        saved = {"recovery_point": saved["recovery_point"]}
    one = reopened(directory, saved, SMALL)
    assert header.base_offset == 118
    assert one.offset_of_max_time()[:2] == (117, NOW + 10 * 58 + 1)


def test_latest_time_ignores_records_below_the_log_start(directory):
    one = opened(directory)
    for time in (NOW + 100, NOW):
        one.append(make(1, now=time), NOW)
    one.move_start(1)
    assert one.offset_of_max_time()[:2] == (1, NOW)


def test_retention_uses_the_next_segment_if_no_record_has_a_time(directory, tmp_path):
    config = {**SMALL, "retention.ms": 1000}
    saved = closed(numbered(directory, config))
    count = len(files(tmp_path))
    files(tmp_path)[0].write_bytes(bytes(files(tmp_path)[0].stat().st_size))
    for index in (tmp_path / "t-0").glob("*index"):
        index.unlink()
    one = reopened(directory, {"recovery_point": saved["recovery_point"]}, config)
    assert one.upkeep(NOW + 1000) == 0
    assert one.upkeep(NOW + 100_000) == count
    assert one.start_offset == one.end_offset == 120


@pytest.mark.parametrize("config", [{"retention.ms": 1}, {"retention.bytes": 9_000}])
def test_retention_removes_damaged_segments(directory, tmp_path, config):
    saved = closed(numbered(directory, {**SMALL, **config, "file.delete.delay.ms": 0}))
    spoil(files(tmp_path)[0], 2, *DAMAGES["zeros"])
    second = int(files(tmp_path)[1].stem)
    one = reopened(directory, saved, {**SMALL, **config})
    survey(one)
    assert one.upkeep(NOW + 100_000) > 0
    assert one.start_offset >= second and survey(one)[0] == []


def test_deleted_records_may_end_in_a_hole(directory, tmp_path):
    saved = closed(numbered(directory))
    _, header = spoil(files(tmp_path)[1], 2, *DAMAGES["zeros"])
    one = reopened(directory, saved, SMALL)
    one.move_start(header.base_offset + 1)
    assert one.start_offset == header.base_offset + 1
    assert survey(one)[0] == [header.base_offset + 1]
    one.move_start(header.base_offset + 2)
    assert survey(one)[0] == [] and min(survey(one)[1]) == header.base_offset + 2


def test_reader_recovers_after_a_wrong_length(directory, tmp_path):
    saved = closed(numbered(directory))
    _, header = spoil(files(tmp_path)[1], 2, *DAMAGES["long"])
    one = reopened(directory, saved, SMALL)
    assert len(one.read(header.base_offset, 1))
    gone, rows = survey(one)
    assert set(gone) <= {header.base_offset, header.base_offset + 1}
    assert set(range(120)) - set(rows) <= {header.base_offset, header.base_offset + 1}


@pytest.mark.timeout(60)
def test_log_with_a_missing_file_is_not_handed_over(directory, tmp_path):
    saved = closed(numbered(directory))
    files(tmp_path)[1].unlink()
    one = reopened(directory, saved, SMALL)
    (tmp_path / "other").mkdir()
    to = log.Log.open(log.LogDir(tmp_path / "other", 2), "t", 0, TOPIC_ID, SMALL, now_ms=NOW)
    with pytest.raises(log.LogError):
        replica_move.hand_over(one, to, NOW)
    assert one.is_leader


def test_only_the_batch_with_a_wrong_offset_is_missing(directory, tmp_path):
    saved = closed(numbered(directory))
    _, header = spoil(files(tmp_path)[1], 2, 0, struct.pack(">q", 1_000_000))
    for index in (tmp_path / "t-0").glob("*index"):
        index.unlink()
    one = reopened(directory, {"recovery_point": saved["recovery_point"]}, SMALL)
    gone, rows = survey(one)
    assert gone == [header.base_offset, header.base_offset + 1]
    assert sorted(rows) == [offset for offset in range(120) if offset not in gone]


def test_truncation_to_first_batch_after_a_hole_leaves_no_empty_segment(
        directory, tmp_path):
    one = numbered(directory)
    base = int(files(tmp_path)[1].stem)
    saved = closed(one)
    # Bytes without offsets, before a first batch of two records.
    file = files(tmp_path)[1]
    file.write_bytes(b"\x05" * 100 + file.read_bytes())
    for index in (tmp_path / "t-0").glob("*index"):
        index.unlink()
    one = reopened(directory, {"recovery_point": saved["recovery_point"]}, SMALL)
    one.truncate(base + 1)
    assert one.end_offset == base
    for _ in range(40):
        one.append(make(2), NOW)
    assert one.end_offset == base + 80 and survey(one)[0] == []
