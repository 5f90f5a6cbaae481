"""Compaction of a log keeps exactly the newest record of each key, at its offset."""

import os
import random
import shutil
import struct

import pytest

from pylog._native.log import compaction
from pylog._native.log import log
from pylog._native.records import batch
from tests.native.log.test_log import NOW, TOPIC_ID, checkpoint_of
from tests.wire import raw

CONFIG = {"cleanup.policy": "compact", "segment.bytes": 4000}
RETENTION_MS = 1000


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


def opened(directory, config=CONFIG, **checkpoint):
    one = log.Log.open(directory, "t", 0, TOPIC_ID, config, now_ms=NOW, **checkpoint)
    one.become_leader(0)
    return one


def cleaned(one, *, first_dirty=0, now_ms=NOW, size=1 << 20, step=1000, segment_bytes=4000, lag=0):
    """Return the statistics of a complete pass, or None if there was nothing to clean."""
    one_pass = compaction.CleaningPass(
        one, compaction.OffsetMap(size), now_ms=now_ms, first_dirty=first_dirty,
        delete_retention_ms=RETENTION_MS, segment_bytes=segment_bytes, min_compaction_lag_ms=lag)
    try:
        while one_pass.step(step):
            pass
        return one_pass.figures()
    finally:
        one_pass.close()


@pytest.mark.parametrize("timestamp", [-1, -5])
def test_records_without_a_timestamp_are_compacted_by_the_time_of_their_file(tmp_path, timestamp):
    one = opened(log.LogDir(tmp_path, 1))
    for _ in range(60):
        one.append(batch.build([(b"k", b"x" * 100, timestamp, [])]), NOW)
    for path in tmp_path.glob("t-0/*.log"):
        os.utime(path, (NOW / 1000, NOW / 1000))
    one.flush()
    assert cleaned(one, now_ms=NOW + 5_000, lag=10_000) is None
    assert len(content(one)) == 60
    assert cleaned(one, now_ms=NOW + 20_000, lag=10_000) is not None
    assert len(content(one)) < 60


def append(one, rows, *, now_ms=NOW, **options):
    """Append rows [(key, value)] and return the base offset."""
    records = [(key, value, now_ms + at, []) for at, (key, value) in enumerate(rows)]
    return one.append(batch.build(records, **options), now_ms)[0]


def fill(one, key=b"filler", count=60):
    """Roll, so that earlier records leave the active segment."""
    for _ in range(count):
        append(one, [(key, b"x" * 100)])


def content(one):
    """Return [(offset, key, value)] of the whole log, with verified checksums and order."""
    rows, offset, before = [], one.start_offset, -1
    while offset < one.end_offset:
        data = memoryview(one.read(offset))
        if not data:
            break
        for position, header in batch.walk(data):
            assert batch.crc_ok(data[position:])
            assert header.base_offset > before
            before = offset = header.base_offset + header.last_offset_delta
            offset += 1
            if not header.attributes & batch.CONTROL and header.record_count:
                rows += [(at, key, value)
                         for at, _, key, value, _ in batch.records(data[position:])]
    return rows


def headers(one):
    found, offset = [], one.start_offset
    while offset < one.end_offset:
        data = memoryview(one.read(offset))
        if not data:
            break
        for position, header in batch.walk(data):
            found.append((header, bytes(data[position:position + header.batch_length + 12])))
            offset = header.base_offset + header.last_offset_delta + 1
    return found


def newest(rows, end):
    """Return the rows that compaction keeps below `end`, and all rows from there on."""
    last = {key: at for at, key, _ in rows if at < end}
    return [row for row in rows if row[0] >= end or last[row[1]] == row[0]]


@pytest.mark.parametrize("codec", range(5))
def test_newest_record_of_each_key_keeps_its_offset(directory, codec):
    one = opened(directory)
    for number in range(50):
        append(one, [(b"k%d" % (number % 7), b"v%d" % number * 10), (b"own%d" % number, b"x")],
               codec=codec)
    fill(one)
    before = content(one)
    figures = cleaned(one)
    end = figures["end_offset"]
    assert content(one) == newest(before, end)
    assert figures["records_kept"] < figures["records_read"]
    assert one.size_bytes == sum(path.stat().st_size for path in _logs(directory))
    # Reads may begin at any offset, including a removed one.
    for offset in range(0, one.end_offset, 3):
        data = one.read(offset, max_bytes=100)
        first = next(header for _, header in batch.walk(data))
        assert first.base_offset + first.last_offset_delta >= offset


def _logs(directory):
    from pathlib import Path

    return list(Path(directory.path, "t-0").glob("*.log"))


def test_random_logs_keep_the_newest_record_of_each_key(directory, random_source):
    dice = random_source
    one = opened(directory)
    for _ in range(3):
        for _ in range(150):
            rows = [(b"%d" % dice.randrange(40), None if dice.random() < 0.1 else
                     dice.randbytes(dice.randrange(60))) for _ in range(dice.randrange(1, 9))]
            append(one, rows, codec=dice.randrange(5))
        fill(one, count=45)
        before = content(one)
        end = cleaned(one, step=dice.choice((100, 5000, 1 << 20)))["end_offset"]
        assert content(one) == newest(before, end)


def test_second_pass_maps_only_dirty_segments_and_merges_small_ones(directory):
    one = opened(directory)
    for number in range(120):
        append(one, [(b"k%d" % (number % 5), b"y" * 200)])
    fill(one)
    first = cleaned(one)
    fill(one, b"other")
    before = content(one)
    second = cleaned(one, first_dirty=first["end_offset"])
    assert second["bytes_mapped"] < second["bytes_read"] + first["bytes_mapped"]
    assert second["segments_after"] < first["segments_before"]
    assert content(one) == newest(before, second["end_offset"])
    assert cleaned(one, first_dirty=second["end_offset"]) is None


def test_tombstone_is_removed_after_its_retention(directory):
    one = opened(directory)
    append(one, [(b"gone", b"1")])
    append(one, [(b"gone", None), (b"kept", b"2")])
    fill(one)
    end = cleaned(one)["end_offset"]
    assert (1, b"gone", None) in content(one) and b"1" not in [row[2] for row in content(one)]
    times = dict((row[0], row[1]) for _, data in headers(one)[:1] for row in batch.records(data))
    assert times[1] == NOW
    fill(one)
    cleaned(one, first_dirty=end, now_ms=NOW + RETENTION_MS - 1)
    assert (1, b"gone", None) in content(one)
    fill(one)
    cleaned(one, first_dirty=end, now_ms=NOW + RETENTION_MS)
    assert b"gone" not in [row[1] for row in content(one)]
    assert (2, b"kept", b"2") in content(one)


@pytest.mark.parametrize("codec", [0, 4])
def test_append_times_are_preserved_by_compaction(directory, codec):
    """Record timestamps differ from the broker's clock; a batch that loses records keeps its own.
    """
    one = opened(directory, {**CONFIG, "message.timestamp.type": "LogAppendTime"})
    for number in range(40):
        records = [(b"k%d" % key, None if (number + key) % 7 == 0 else b"v" * 60,
                    NOW - 10**6 * key - number, []) for key in (number % 5, 5 + number)]
        one.append(batch.build(records, codec=codec), NOW + 100 * number)
    for number in range(60):
        one.append(batch.build([(b"filler", b"x" * 100, 5, [])]), NOW + 100 * (40 + number))
    before = {header.base_offset: header for header, _ in headers(one)}
    end = 0
    for past_ms in (20_000, 20_000 + RETENTION_MS):
        end = cleaned(one, first_dirty=end, now_ms=NOW + past_ms)["end_offset"]
        after = headers(one)
        changed = 0
        for header, data in after:
            old = before[header.base_offset]
            assert header.attributes & batch.LOG_APPEND_TIME
            assert header.max_timestamp == old.max_timestamp
            times = {row[1] for row in batch.records(data)}
            assert times <= {old.max_timestamp}, (header, times)
            changed += header.record_count != old.record_count
        assert changed > 0
        first = {}
        for _, data in after:
            for row in batch.records(data):
                first.setdefault(row[1], row[0])
        for time_ms, offset in first.items():
            assert one.offset_for_time(time_ms)[:2] == (offset, time_ms)
        one.append(batch.build([(b"filler", b"x" * 5_000, 5, [])]), NOW + 10_000)
        one.append(batch.build([(b"filler", b"x" * 5_000, 5, [])]), NOW + 10_000)
        before |= {header.base_offset: header for header, _ in headers(one)
                   if header.base_offset not in before}


def test_active_and_recent_segments_are_not_cleaned(directory):
    one = opened(directory)
    append(one, [(b"k", b"1")])
    append(one, [(b"k", b"2")])
    assert cleaned(one) is None
    fill(one)
    assert cleaned(one, lag=10_000) is None
    assert [row for row in content(one) if row[1] == b"k"] == [(0, b"k", b"1"), (1, b"k", b"2")]


def test_full_map_ends_the_pass_early_and_the_next_continues(directory):
    one = opened(directory)
    for number in range(300):
        append(one, [(b"%d" % (number % 150), b"z" * 50)])
    fill(one)
    before, end = content(one), 0
    for _ in range(50):
        figures = cleaned(one, first_dirty=end, size=40 * compaction.SLOT_BYTES)
        if figures is None:
            break
        assert figures["end_offset"] > end
        end = figures["end_offset"]
        keys = [row[1] for row in content(one)]
        assert set(keys) == {row[1] for row in before}
    assert content(one) == newest(before, end)


def test_last_batch_of_a_producer_keeps_its_sequence(directory):
    one = opened(directory)
    append(one, [(b"k", b"1")], producer_id=7, producer_epoch=0, base_sequence=0)
    append(one, [(b"k", b"2")], producer_id=7, producer_epoch=0, base_sequence=1)
    append(one, [(b"k", b"3")])
    fill(one)
    cleaned(one)
    mine = [header for header, _ in headers(one) if header.producer_id == 7]
    assert [(header.base_sequence, header.record_count) for header in mine] == [(1, 0)]
    one.release()
    one = opened(directory)
    assert append(one, [(b"k", b"2")], producer_id=7, producer_epoch=0, base_sequence=1) == 1
    assert append(one, [(b"k", b"4")], producer_id=7, producer_epoch=0, base_sequence=2) > 1


def marker(producer_id, commit):
    key, value = struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0)
    return batch.build([(key, value, NOW, [])], producer_id=producer_id, producer_epoch=0,
                       attributes=batch.CONTROL | batch.TRANSACTIONAL)


def follow(one, data):
    data = bytearray(data)
    batch.stamp(data, one.end_offset, 0)
    one.append_as_follower(data, NOW)
    one.advance_high_watermark(one.end_offset)


def transaction(one, producer_id, rows, sequence, commit=None):
    records = [(key, value, NOW, []) for key, value in rows]
    follow(one, batch.build(records, producer_id=producer_id, producer_epoch=0,
                            base_sequence=sequence, attributes=batch.TRANSACTIONAL))
    if commit is not None:
        follow(one, marker(producer_id, commit))


def plain(one, rows):
    follow(one, batch.build([(key, value, NOW, []) for key, value in rows]))


def test_aborted_records_are_removed_and_supersede_nothing(directory):
    one = log.Log.open(directory, "t", 0, TOPIC_ID, CONFIG, now_ms=NOW)
    plain(one, [(b"a", b"old"), (b"b", b"old")])
    transaction(one, 1, [(b"a", b"aborted")], 0, commit=False)
    transaction(one, 2, [(b"b", b"new")], 0, commit=True)
    transaction(one, 1, [(b"c", b"later")], 1, commit=True)
    for _ in range(60):
        plain(one, [(b"filler", b"x" * 100)])
    first = cleaned(one)
    assert [row[1:] for row in content(one) if row[1] != b"filler"] == [
        (b"a", b"old"), (b"b", b"new"), (b"c", b"later")]
    controls = [header for header, _ in headers(one) if header.attributes & batch.CONTROL]
    assert [header.producer_id for header in controls] == [1, 2, 1]
    for _ in range(60):
        plain(one, [(b"filler", b"x" * 100)])
    # The aborted transaction has no data left, so its marker expires. The other markers stay.
    second = cleaned(one, first_dirty=first["end_offset"], now_ms=NOW)
    for _ in range(60):
        plain(one, [(b"filler", b"x" * 100)])
    cleaned(one, first_dirty=second["end_offset"], now_ms=NOW + RETENTION_MS)
    controls = [header for header, _ in headers(one) if header.attributes & batch.CONTROL
                and header.record_count]
    assert [header.producer_id for header in controls] == [2, 1]


def test_records_of_an_open_transaction_are_not_cleaned(directory):
    one = log.Log.open(directory, "t", 0, TOPIC_ID, CONFIG, now_ms=NOW)
    transaction(one, 1, [(b"a", b"undecided")], 0)
    for _ in range(90):
        plain(one, [(b"a", b"x" * 100)])
    assert cleaned(one) is None


@pytest.mark.parametrize("delta", [-1, 2**31])
def test_record_with_an_impossible_offset_ends_the_pass(directory, delta):
    """The checksum is correct: a leader that does not check records forwarded it."""
    one = opened(directory)
    wrong = raw.batch([raw.record(b"k", b"v", offset_delta=delta)], base_timestamp=NOW)
    one.append(bytearray(wrong), NOW, trusted=True)
    fill(one)
    size = one.size_bytes
    with pytest.raises(log.CorruptLog):
        cleaned(one)
    assert one.size_bytes == size


def test_survey_distinguishes_clean_and_dirty_bytes(directory):
    one = opened(directory)
    fill(one, count=100)
    clean, dirty, first, end, timestamp = compaction.look(one, now_ms=NOW, first_dirty=0)
    assert (clean, first, timestamp) == (0, 0, NOW) and 0 < dirty < one.size_bytes
    cleaned(one)
    after = compaction.look(one, now_ms=NOW, first_dirty=end)
    assert after[1] == 0 and after[2] == after[3] == end


def test_cleaned_log_reopens_after_a_clean_stop_and_a_crash(directory, tmp_path):
    one = opened(directory)
    for number in range(200):
        append(one, [(b"k%d" % (number % 30), b"v" * 60)])
    fill(one)
    cleaned(one)
    expected, end = content(one), one.end_offset
    one.flush()
    copy = tmp_path / "copy"
    shutil.copytree(directory.path, copy)
    crashed = opened(log.LogDir(copy, 2))
    assert content(crashed) == expected and crashed.end_offset == end
    one.settle(NOW)
    at_rest = checkpoint_of(one)
    one.close(NOW)
    again = opened(directory, **at_rest)
    assert content(again) == expected


def test_interrupted_swap_is_completed_by_the_next_start(directory, tmp_path):
    one = opened(directory)
    for number in range(200):
        append(one, [(b"k%d" % (number % 3), b"v" * 60)])
    fill(one)
    before = content(one)
    one.flush()
    old = tmp_path / "old"
    shutil.copytree(directory.path, old)
    end = cleaned(one)["end_offset"]
    first = min(_logs(directory))
    # The new file has its swap name, and all old files still exist.
    shutil.copy(first, old / "t-0" / f"{first.name}.swap")
    shutil.copy(first, old / "t-0" / "00000000000000000050.log.cleaned")
    crashed = opened(log.LogDir(old, 2))
    assert not list((old / "t-0").glob("*.swap")) + list((old / "t-0").glob("*.cleaned"))
    rows = content(crashed)
    assert set(newest(before, end)) <= set(rows) and len(rows) < len(before)
    for offset in range(0, crashed.end_offset, 7):
        crashed.read(offset, max_bytes=100)


def test_swap_with_a_damaged_offset_replaces_only_covered_segments(
        directory, tmp_path):
    one = opened(directory)
    for number in range(200):
        append(one, [(b"k%d" % number, b"v" * 60)])
    fill(one)
    end = one.end_offset
    one.release()
    second, third = sorted(_logs(directory))[1:3]
    covered = second.read_bytes()
    # The base offset of the last batch is not covered by its checksum.
    last = max(position for position, _ in batch.walk(covered))
    swap = second.with_suffix(".log.swap")
    swap.write_bytes(covered[:last] + b"\x7f" + covered[last + 1:])
    opened(directory, recovery_point=end)
    assert third.exists() and not swap.exists()


def test_pass_over_deleted_segments_changes_nothing(directory):
    one = opened(directory)
    for number in range(200):
        append(one, [(b"k%d" % (number % 3), b"v" * 60)])
    fill(one)
    one_pass = compaction.CleaningPass(one, compaction.OffsetMap(1 << 20), now_ms=NOW,
                                       first_dirty=0,
                                       delete_retention_ms=0, segment_bytes=4000)
    assert one_pass.step(100)
    one.move_start(one.end_offset - 1, NOW)
    expected = content(one)
    with pytest.raises(compaction.Interrupted):
        while one_pass.step(1 << 20):
            pass
    one_pass.close()
    assert content(one) == expected
    assert not [path for path in (_logs(directory)[0].parent).glob("*.cleaned")]


def bases(directory):
    return sorted(int(path.stem) for path in _logs(directory))


@pytest.mark.parametrize("seed", range(4))
def test_formerly_compacted_log_loses_nothing(directory, seed):
    """Gaps between its segments, above the recovery point, were treated as power loss damage."""
    dice = random.Random(seed)
    one = opened(directory)
    for number in range(200):
        # Offset ranges without remaining records, also at the ends of segments.
        append(one, [(b"k%d" % (number // dice.randrange(20, 50) % 2), dice.randbytes(90))],
               producer_id=7 if number < 50 else -1, producer_epoch=0 if number < 50 else -1,
               base_sequence=number if number < 50 else -1)
    fill(one)
    figures = cleaned(one, segment_bytes=dice.choice((500, 4000)))
    assert figures["records_kept"] < figures["records_read"] / 2
    before, end = content(one), one.end_offset
    one.release()
    again = opened(directory, {**CONFIG, "cleanup.policy": "delete"}, recovery_point=0)
    assert again.recovery_report()[0] == 0
    assert (again.end_offset, content(again)) == (end, before)


def test_cleaned_segments_end_where_the_next_begin(directory):
    one = opened(directory)
    for number in range(200):
        append(one, [(b"k%d" % (number % 3), b"z" * 90)])
    fill(one)
    assert cleaned(one, segment_bytes=1000)["segments_after"] > 1
    found = headers(one)
    ends = {header.base_offset + header.last_offset_delta + 1 for header, _ in found}
    assert set(bases(directory)[1:]) <= ends
    sizes = one.size_bytes
    fill(one, count=1)
    # An empty batch is not rewritten.
    assert cleaned(one, segment_bytes=1000)["segments_after"]
    assert one.size_bytes <= sizes + 300


def test_loss_in_a_formerly_compacted_log_is_detected(directory, tmp_path):
    one = opened(directory)
    for number in range(200):
        append(one, [(b"k%d" % (number % 3), b"z" * 90)])
    fill(one)
    cleaned(one, segment_bytes=1000)
    first, second = bases(directory)[:2]
    one.release()
    path = tmp_path / "t-0" / f"{first:020}.log"
    last = list(batch.walk(path.read_bytes()))[-1][0]
    with open(path, "r+b") as file:
        file.truncate(last)
    again = opened(directory, {**CONFIG, "cleanup.policy": "delete"}, recovery_point=0)
    assert again.end_offset < second
