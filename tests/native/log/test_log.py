"""Append, read, roll, retain and delete, through the Python interface of the log."""

import gc
import os
import struct
import time
from pathlib import Path

import pytest

from pylog._native.log import log
from pylog._native.records import batch

NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


def make(count=1, *, now=NOW, size=100, codec=0, **producer):
    records = [(b"k%d" % i, bytes([i % 256]) * size, now + i, []) for i in range(count)]
    return batch.build(records, codec=codec, **producer)


def opened(directory, topic="t", partition=0, config=None, leader=True, **checkpoint):
    one = log.Log.open(directory, topic, partition, TOPIC_ID, config, now_ms=NOW, **checkpoint)
    if leader:
        one.become_leader(checkpoint.get("epoch", 0))
    return one


def checkpoint_of(one):
    return {
        "clean": True,
        "segments": one.segments(),
        "log_end_offset": one.end_offset,
        "last_epoch": one.last_epoch,
        "log_start_offset": one.start_offset,
        "high_watermark": one.high_watermark,
        "recovery_point": one.recovery_point,
    }


def offsets(data):
    return [h.base_offset for _, h in batch.walk(data)]


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


def test_an_appended_batch_is_read_back_with_offset_and_epoch_stamped(directory):
    one = opened(directory)
    assert one.append(make(3), NOW) == (0, 2)
    assert one.append(make(2), NOW) == (3, 4)
    data = one.read(0)
    assert offsets(data) == [0, 3]
    assert [h.leader_epoch for _, h in batch.walk(data)] == [0, 0]
    assert all(batch.crc_ok(data[p:]) for p, _ in batch.walk(data))
    assert one.end_offset == one.high_watermark == one.last_stable_offset == 5


def test_read_starts_at_the_batch_with_the_offset(directory):
    one = opened(directory)
    for _ in range(4):
        one.append(make(5), NOW)
    assert offsets(one.read(7)) == [5, 10, 15]
    assert offsets(one.read(10)) == [10, 15]
    assert one.read(20) == b""


def test_offsets_outside_the_log_are_rejected_and_the_unreplicated_tail_is_empty(directory):
    one = opened(directory, leader=False)
    one.become_leader(0, in_sync_count=2)
    one.append(make(5), NOW)
    assert one.high_watermark == 0
    assert one.read(0, bound=log.BOUND_HIGH_WATERMARK) == b""
    assert one.read(3, bound=log.BOUND_HIGH_WATERMARK) == b""
    for wrong in (-1, 6, 2**62):
        with pytest.raises(log.OffsetOutOfRange):
            one.read(wrong, bound=log.BOUND_HIGH_WATERMARK)
    one.advance_high_watermark(5)
    assert offsets(one.read(0, bound=log.BOUND_HIGH_WATERMARK)) == [0]


def test_upper_bound_ends_the_range_at_its_batch(directory):
    one = opened(directory, leader=False)
    one.become_leader(0, in_sync_count=2)
    for _ in range(6):
        one.append(make(2), NOW)
    one.advance_high_watermark(6)
    for start in (0, 2, 4):
        assert offsets(one.read(start, bound=log.BOUND_HIGH_WATERMARK)) == list(range(start, 6, 2))


def test_ranges_end_at_batch_boundaries_and_contain_the_first_batch(directory):
    one = opened(directory)
    length = len(make(1))
    for _ in range(200):
        one.append(make(1), NOW)
    assert len(one.read(0, 10 * length + 5)) == 10 * length
    assert len(one.read(50, 10 * length)) == 10 * length
    assert len(one.read(7, 1)) == length
    assert one.read(7, 1, at_least_one=False) == b""
    assert len(one.read(199, 10**6)) == length


@pytest.mark.parametrize("step", [1, 100, 997, 5000, 40000, 2**31 - 1])
def test_following_reads_see_every_record_once_in_order(directory, step):
    one = opened(directory, config={"internal.segment.bytes": 20_000, "index.interval.bytes": 500})
    sizes = [1 + (i * 7) % 5 for i in range(300)]
    for size in sizes:
        one.append(make(size), NOW)
    at, seen = 0, []
    while at < one.end_offset:
        data = one.read(at, step)
        for _, h in batch.walk(data):
            seen.append(h.base_offset)
            at = h.base_offset + h.last_offset_delta + 1
    assert seen == [sum(sizes[:i]) for i in range(len(sizes))]


def test_a_read_at_every_offset_begins_with_its_batch(directory):
    one = opened(directory, config={"internal.segment.bytes": 9_000, "index.interval.bytes": 300})
    expected = []
    for i in range(150):
        size = 1 + i % 4
        base, _ = one.append(make(size, codec=i % 5), NOW)
        expected += [base] * size
    for offset in reversed(range(one.end_offset)):
        assert offsets(one.read(offset, 1)) == [expected[offset]]


def test_segments_roll_by_size_and_their_files_are_trimmed(directory, tmp_path):
    one = opened(directory, config={"internal.segment.bytes": 300_000})
    for _ in range(100):
        one.append(make(1, size=10_000), NOW)
    one.close(NOW)
    files = sorted((tmp_path / "t-0").glob("*.log"))
    assert len(files) == 4
    for file in files:
        stat = file.stat()
        assert stat.st_size <= 300_000
        assert stat.st_blocks * 512 <= stat.st_size + 8192
        assert file.with_suffix(".index").stat().st_size % 8 == 0
        assert file.with_suffix(".timeindex").stat().st_size % 12 == 0


def test_segments_roll_by_record_time_and_by_a_full_index(directory):
    one = opened(directory, config={"segment.ms": 1000})
    for step in (0, 500, 900, 1501):
        one.append(make(1, now=NOW + step), NOW)
    assert struct.unpack("6q", one.segments())[::3] == (0, 3)
    two = opened(directory, "u", config={"segment.index.bytes": 48, "index.interval.bytes": 1})
    for i in range(30):
        two.append(make(1, now=NOW + i), NOW)
    assert len(two.segments()) // 24 > 3


def test_index_entries_name_the_last_offset_and_the_start_of_a_batch(directory, tmp_path):
    one = opened(directory, config={"index.interval.bytes": 200})
    for i in range(40):
        one.append(make(3, now=NOW + 10 * i), NOW)
    one.close(NOW)
    data = (tmp_path / "t-0" / f"{0:020}.log").read_bytes()
    borders = {p: h.base_offset + h.last_offset_delta for p, h in batch.walk(data)}
    index = (tmp_path / "t-0" / f"{0:020}.index").read_bytes()
    entries = list(struct.iter_unpack(">ii", index))
    assert len(entries) > 10
    assert all(borders[position] == offset for offset, position in entries)
    times = list(struct.iter_unpack(">qi", (tmp_path / "t-0" / f"{0:020}.timeindex").read_bytes()))
    assert times == sorted(set(times))
    assert times[-1] == (NOW + 392, 119)


def test_idle_partition_opens_no_descriptor(directory, tmp_path):
    one = opened(directory)
    one.append(make(1), NOW)
    saved = checkpoint_of(one)
    one.close(NOW)
    again = opened(directory, **saved)
    before = set(os.listdir("/proc/self/fd"))
    third = log.Log.open(directory, "absent", 0, TOPIC_ID, None, now_ms=NOW, clean=True)
    third.become_leader(1)
    assert set(os.listdir("/proc/self/fd")) == before
    assert not (tmp_path / "absent-0").exists()
    assert again.end_offset == 1
    assert offsets(again.read(0)) == [0]


def test_clean_start_continues_at_the_end(directory):
    config = {"internal.segment.bytes": 2_000, "index.interval.bytes": 200}
    one = opened(directory, config=config)
    for i in range(30):
        one.append(make(2, producer_id=7, producer_epoch=0, base_sequence=2 * i), NOW)
    one.settle(NOW)
    saved = checkpoint_of(one)
    one.close(NOW)
    again = opened(directory, config=config, **saved)
    assert again.recovery_report() == (0, 0)
    assert again.append(make(2, producer_id=7, producer_epoch=0, base_sequence=58), NOW) == (58, 59)
    with pytest.raises(log.SequenceError):
        again.append(make(1, producer_id=7, producer_epoch=0, base_sequence=70), NOW)
    assert again.append(make(2, producer_id=7, producer_epoch=0, base_sequence=60), NOW) == (60, 61)
    assert len(again.read(0)) > 0
    assert [offsets(again.read(o, 1)) for o in range(0, 62, 2)] == [[o] for o in range(0, 62, 2)]


@pytest.mark.parametrize("wrong", ["twice", "backwards", "a negative size"])
def test_checkpoint_with_unordered_segments_is_rejected(directory, wrong):
    config = {"internal.segment.bytes": 500}
    one = opened(directory, config=config)
    for _ in range(12):
        one.append(make(1), NOW)
    one.settle(NOW)
    saved = checkpoint_of(one)
    one.close(NOW)
    first, second, *rest = struct.iter_unpack("=3q", saved["segments"])
    rows = {"twice": [first, first, second, *rest], "backwards": [second, first, *rest],
            "a negative size": [first, (second[0], -1, second[2]), *rest]}[wrong]
    segments = b"".join(struct.pack("=3q", *row) for row in rows)
    with pytest.raises(log.CorruptLog):
        opened(directory, config=config, **{**saved, "segments": segments})
    assert opened(directory, config=config, **saved).end_offset == 12


def test_appends_require_leadership_in_the_given_epoch(directory):
    one = opened(directory, leader=False)
    with pytest.raises(log.NotLeader):
        one.append(make(), NOW)
    one.become_leader(4)
    with pytest.raises(log.NotLeader):
        one.append(make(), NOW, leader_epoch=3)
    assert one.append(make(), NOW, leader_epoch=4) == (0, 0)
    one.become_follower(5)
    with pytest.raises(log.NotLeader):
        one.append(make(), NOW)


def test_log_append_time_is_stamped_with_a_valid_checksum(directory):
    one = opened(directory, config={"message.timestamp.type": "LogAppendTime"})
    one.append(make(2, now=1), NOW)
    data = one.read(0)
    header = batch.header(data)
    assert header.max_timestamp == NOW
    assert header.attributes & batch.LOG_APPEND_TIME
    assert batch.crc_ok(data)


def test_retention_by_time_removes_whole_segments_and_advances_the_start(directory, tmp_path):
    config = {"internal.segment.bytes": 1_000, "retention.ms": 10_000, "file.delete.delay.ms": 0}
    one = opened(directory, config=config)
    for i in range(50):
        one.append(make(1, now=NOW + 1000 * i), NOW)
    assert one.upkeep(NOW + 30_000) > 0
    assert 0 < one.start_offset <= 20
    with pytest.raises(log.OffsetOutOfRange):
        one.read(0)
    assert offsets(one.read(one.start_offset, 1)) == [one.start_offset]
    one.upkeep(NOW + 10**9)
    assert one.start_offset == one.end_offset == 50
    assert one.append(make(1, now=NOW + 10**9), NOW) == (50, 50)


def test_retention_by_size_keeps_at_least_retention_bytes(directory):
    one = opened(directory, config={"internal.segment.bytes": 1_000, "retention.bytes": 3_000})
    for _ in range(50):
        one.append(make(1), NOW)
    size = one.size_bytes
    one.upkeep(NOW)
    assert 3_000 <= one.size_bytes < min(size, 4_001)


def test_retention_skips_a_log_that_is_only_compacted(directory):
    one = opened(
        directory,
        config={
            "internal.segment.bytes": 1_000,
            "retention.bytes": 0,
            "cleanup.policy": ["compact"],
        },
    )
    for _ in range(20):
        one.append(make(1), NOW)
    assert one.upkeep(NOW + 10**12) == 0


def test_removed_segments_stay_readable_for_current_readers(directory, tmp_path):
    one = opened(directory, config={"internal.segment.bytes": 1_000, "file.delete.delay.ms": 10**6})
    for _ in range(20):
        one.append(make(1), NOW)
    one.move_start(15)
    assert one.start_offset == 15
    assert list((tmp_path / "t-0").glob("*.log.deleted"))
    with pytest.raises(log.OffsetOutOfRange):
        one.move_start(21)


def test_a_deleted_log_is_renamed_at_once_and_unlinked_later(directory, tmp_path):
    one = opened(directory, config={"file.delete.delay.ms": 0})
    one.append(make(), NOW)
    one.delete(NOW)
    assert not (tmp_path / "t-0").exists()
    with pytest.raises(log.LogDeleted):
        one.append(make(), NOW)
    with pytest.raises(log.LogDeleted):
        one.read(0)
    one.release()
    again = opened(directory)
    assert again.end_offset == 0
    again.append(make(), NOW)
    for _ in range(200):
        if not list(tmp_path.glob("*-delete")):
            break
        os.sched_yield()
        time.sleep(0.01)
    assert not list(tmp_path.glob("*-delete"))


def test_half_deleted_directories_are_removed_at_the_next_start(tmp_path):
    left = tmp_path / f"t-0.{'a1' * 16}-delete"
    left.mkdir()
    (left / "x.log").write_bytes(b"x")
    kept = tmp_path / "my-delete"
    kept.mkdir()
    directory = log.LogDir(tmp_path, 1)
    del directory
    assert not left.exists()
    assert kept.exists()


def test_topic_id_is_written_and_another_one_is_rejected(directory, tmp_path):
    one = opened(directory)
    one.append(make(), NOW)
    one.release()
    text = (tmp_path / "t-0" / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    with pytest.raises(log.CorruptLog):
        log.Log.open(directory, "t", 0, bytes([255] * 16), None, now_ms=NOW)


def test_epochs_are_stored_with_their_first_offset(directory, tmp_path):
    one = opened(directory)
    one.append(make(5), NOW)
    one.become_leader(3)
    one.append(make(5), NOW)
    assert one.end_for_epoch(0) == (0, 5)
    assert one.end_for_epoch(2) == (0, 5)
    assert one.end_for_epoch(3) == (3, 10)
    assert one.end_for_epoch(4) == (-1, -1)
    assert (one.epoch_of(4), one.epoch_of(5), one.last_epoch) == (0, 3, 3)
    one.close(NOW)
    text = (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text()
    assert text == "0\n2\n0 0\n3 5\n"


def test_truncation_drops_records_epochs_and_producer_state(directory):
    config = {"internal.segment.bytes": 1_000, "index.interval.bytes": 200}
    one = opened(directory, config=config)
    for i in range(40):
        if i == 30:
            one.become_leader(1)
        one.append(make(1, producer_id=5, producer_epoch=0, base_sequence=i), NOW)
    assert one.truncate(25) == 25
    assert one.end_offset == one.high_watermark == 25
    assert one.end_for_epoch(0) == (0, 25)
    one.become_leader(2)
    assert one.append(make(1, producer_id=5, producer_epoch=0, base_sequence=25), NOW) == (25, 25)
    assert [offsets(one.read(o, 1)) for o in range(26)] == [[o] for o in range(26)]
    assert one.truncate(0) == 0
    assert one.append(make(1), NOW) == (0, 0)


def test_the_offset_for_a_time_is_exact_to_the_record(directory):
    one = opened(directory, config={"internal.segment.bytes": 3_000, "index.interval.bytes": 100})
    stamps = []
    for i in range(60):
        records = [(None, b"v" * 50, NOW + 10 * (i * 4 + k), []) for k in range(4)]
        one.append(batch.build(records, codec=i % 5), NOW)
        stamps += [record[2] for record in records]
    for target in range(NOW - 5, NOW + 2400, 7):
        expected = next(((i, t, 0) for i, t in enumerate(stamps) if t >= target), None)
        assert one.offset_for_time(target) == expected
    assert one.offset_of_max_time() == (239, stamps[-1], 0)


def test_the_greatest_timestamp_is_found_when_records_are_out_of_order(directory):
    one = opened(directory, config={"internal.segment.bytes": 2_000, "index.interval.bytes": 100})
    assert one.offset_of_max_time() is None
    for i in range(60):
        one.append(make(1, now=NOW + (5000 if i == 33 else i)), NOW)
    assert one.offset_of_max_time() == (33, NOW + 5000, 0)
    assert one.offset_for_time(NOW + 100) == (33, NOW + 5000, 0)
    assert one.offset_for_time(NOW + 5001) is None


def test_a_flush_moves_the_recovery_point_to_the_end(directory):
    one = opened(directory)
    one.append(make(5), NOW)
    assert one.recovery_point == 0
    one.flush()
    assert one.recovery_point == one.flushed_offset == 5


def test_flush_messages_requests_a_flush(directory):
    one = opened(directory, config={"flush.messages": 3})
    for _ in range(4):
        one.append(make(1), NOW)
    for _ in range(500):
        if one.flushed_offset >= 3:
            break
        time.sleep(0.01)
    assert one.flushed_offset >= 3


def test_descriptors_of_sealed_segments_stay_under_their_limit(tmp_path):
    directory = log.LogDir(tmp_path, 1, open_files_max=4)
    one = opened(directory, config={"internal.segment.bytes": 500})
    for _ in range(60):
        one.append(make(1), NOW)
    one.flush()
    for offset in range(60):
        one.read(offset, 1)
    assert directory.stats()["open_files"] <= 4


def test_directory_that_cannot_be_opened_raises_the_reason(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        log.LogDir(file)
    with pytest.raises(FileNotFoundError):
        log.LogDir(tmp_path / "a" / "b")


def test_name_of_a_deleted_log_respects_the_length_limit(directory, tmp_path):
    one = opened(directory, "x" * 249)
    one.append(make(), NOW)
    one.delete(NOW)
    [left] = Path(tmp_path).iterdir()
    assert len(left.name) == 255
    assert left.name.endswith("-delete")


@pytest.mark.parametrize("count", [3, 20])
def test_directory_flushes_all_of_its_logs_at_once(directory, tmp_path, count):
    logs = [opened(directory, partition=p) for p in range(count)]
    for one in logs:
        one.append(make(2), NOW)
    directory.settle()
    assert [one.recovery_point for one in logs] == [2] * count
    for p in range(count):
        assert {file.suffix for file in (tmp_path / f"t-{p}").glob("0*")} == {
            ".log", ".index", ".timeindex", ".snapshot"}
        assert (tmp_path / f"t-{p}" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    files = directory.stats()["flush_files"]
    for one in logs:
        one.append(make(1), NOW)
        one.flush()
        one.settle(NOW)
    assert directory.stats()["flush_files"] == files + count


def evict(path):
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def test_nonblocking_read_reports_pages_that_need_the_disk(directory, tmp_path):
    config = {"internal.segment.bytes": 4 << 20}
    one = opened(directory, config=config)
    for _ in range(100):
        one.append(make(1, size=100_000), NOW)
    one.settle(NOW)
    saved = checkpoint_of(one)
    one.close(NOW)
    again = opened(directory, config=config, **saved)
    evict(tmp_path / "t-0")
    if again.read_range(20, 300_000, nowait=True) is not None:
        pytest.skip("this file system keeps its pages")
    expected = again.read_range(20, 300_000)
    assert len(again.read(20, 300_000)) == expected[1] > 150_000
    assert again.read_range(20, 300_000, nowait=True) == expected


def test_aborted_transactions_come_from_the_transaction_index(directory, tmp_path):
    one = opened(directory)
    one.append(make(100), NOW)
    rows = [(7, 10, 19, 5), (8, 15, 40, 20), (9, 60, 70, 60)]
    index = b"".join(struct.pack(">hqqqq", 0, *row) for row in rows)
    (tmp_path / "t-0" / f"{0:020}.txnindex").write_bytes(index)
    assert one.aborted_between(0, 100) == [(7, 10), (8, 15), (9, 60)]
    assert one.aborted_between(20, 50) == [(8, 15)]
    assert one.aborted_between(71, 100) == []


def test_open_transactions_hold_back_the_last_stable_offset(directory):
    one = opened(directory)
    one.append(make(5), NOW)
    transactional = make(2, producer_id=4, producer_epoch=0, base_sequence=0,
                         attributes=batch.TRANSACTIONAL)
    one.append(transactional, NOW)
    one.append(make(3), NOW)
    assert (one.high_watermark, one.last_stable_offset) == (10, 5)
    assert offsets(one.read(0, bound=log.BOUND_LAST_STABLE)) == [0]
    one.release()
    again = opened(directory)
    assert (again.high_watermark, again.last_stable_offset) == (10, 5)


def test_upkeep_rolls_by_time_and_requests_flushes_by_age(directory):
    one = opened(directory, config={"segment.ms": 10_000, "flush.ms": 1000, "retention.ms": -1})
    one.append(make(1), NOW)
    one.upkeep(NOW + 9_000)
    assert len(one.segments()) // 24 == 1
    for _ in range(500):
        if one.flushed_offset == 1:
            break
        time.sleep(0.01)
    assert one.flushed_offset == 1
    one.upkeep(NOW + 11_000)
    assert struct.unpack("6q", one.segments())[::3] == (0, 1)
    one.upkeep(NOW + 50_000)
    assert len(one.segments()) // 24 == 2


def test_clock_set_back_delays_neither_flushes_nor_rolls(directory):
    one = opened(directory, config={"segment.ms": 10_000, "flush.ms": 1000, "retention.ms": -1})
    one.append(make(1), NOW)
    past = NOW - 10**9
    one.upkeep(past)
    for _ in range(500):
        if one.flushed_offset == 1:
            break
        time.sleep(0.01)
    assert one.flushed_offset == 1
    one.upkeep(past + 9_000)
    assert len(one.segments()) // 24 == 1
    one.upkeep(past + 11_000)
    assert len(one.segments()) // 24 == 2


def test_segment_rolls_before_an_offset_beyond_its_index_range(directory):
    one = opened(directory, leader=False)
    one.become_follower(0)
    for base in (0, 2**31 - 1, 2**31, 5 * 10**12):
        made = bytearray(make(1))
        batch.stamp(made, base, 0)
        one.append_as_follower(made, NOW)
    assert struct.unpack("9q", one.segments())[::3] == (0, 2**31, 5 * 10**12)
    assert offsets(one.read(7)) == [2**31 - 1]
    assert offsets(one.read(2**31 + 7)) == [5 * 10**12]
    one.release()
    again = opened(directory, recovery_point=5 * 10**12 + 1)
    assert offsets(again.read(2**31 + 7)) == [5 * 10**12]


def test_log_in_a_garbage_cycle_is_freed_before_its_directory(tmp_path):
    class Cycle:
        pass

    for turn in range(20):
        cycle = Cycle()
        cycle.directory = log.LogDir(tmp_path, 1)
        cycle.log = opened(cycle.directory, partition=turn)
        cycle.self = cycle
        cycle.log.append(make(1), NOW)
        del cycle
        gc.collect()


@pytest.mark.parametrize("timestamp", [-1, -5, -86_400_000])
def test_records_without_a_timestamp_from_1970_on_expire_by_the_time_of_their_file(
        directory, timestamp):
    config = {"internal.segment.bytes": 300, "retention.ms": 1_000, "file.delete.delay.ms": 0}
    one = opened(directory, config=config)
    for _ in range(4):
        one.append(make(1, now=timestamp, size=200), NOW)
    for path in Path(directory.path).glob("t-0/*.log"):
        os.utime(path, (NOW / 1000, NOW / 1000))
    one.upkeep(NOW + 999)
    assert one.start_offset == 0
    one.upkeep(NOW + 1_002)
    assert one.start_offset == one.end_offset == 4


@pytest.mark.parametrize("reopens", ["clean", "crashed", "truncated"])
def test_new_records_without_a_timestamp_survive_an_old_file_time(
        directory, reopens):
    config = {"internal.segment.bytes": 1_000, "retention.ms": 5_000, "file.delete.delay.ms": 0}
    one = opened(directory, config=config)
    for _ in range(6 if reopens == "truncated" else 2):
        one.append(make(1, now=-1, size=200), NOW)
    for path in Path(directory.path).glob("t-0/*.log"):
        os.utime(path, (NOW / 1000, NOW / 1000))
    if reopens == "truncated":
        one.upkeep(NOW + 4_000)
        one.truncate(2)
    elif reopens == "clean":
        one.settle()
        checkpoint = checkpoint_of(one)
        one.close()
        one = opened(directory, config=config, leader=False, **checkpoint)
        one.upkeep(NOW + 4_000)
    else:
        one.release()
        one = opened(directory, config=config, leader=False)
        one.advance_high_watermark(2)
        one.upkeep(NOW + 4_000)
    one.become_leader(1)
    # The file's modification time is now today's.
    one.append(make(1, now=-1, size=200), NOW + 4_000)
    one.upkeep(NOW + 6_000)
    assert (one.start_offset, one.end_offset) == (0, 3)


def test_clock_jump_expires_records_by_their_timestamps_only(directory):
    config = {"internal.segment.bytes": 300, "retention.ms": 1_000, "file.delete.delay.ms": 0}
    one = opened(directory, config=config)
    for at in range(6):
        one.append(make(1, now=NOW + at * 100, size=200), NOW)
    # The clock goes back by a day and forward again: nothing expires.
    for now in (NOW - 86_400_000, NOW + 600, NOW + 1_000):
        one.upkeep(now)
        assert one.start_offset == 0, now
    one.upkeep(NOW + 1_250)
    assert one.start_offset == 3
    # A producer's future timestamp keeps its segment; file times on disk do not matter.
    one.append(make(1, now=NOW + 86_400_000, size=200), NOW + 1_300)
    for path in Path(directory.path).glob("t-0/*.log"):
        os.utime(path, (0, 0))
    one.upkeep(NOW + 1_300)
    assert one.start_offset == 3
    # Changed settings apply to the next check.
    one.set_config({**config, "retention.ms": -1})
    one.upkeep(NOW + 10**9)
    assert one.start_offset == 3
    one.set_config({**config, "retention.ms": 100})
    one.upkeep(NOW + 700)
    assert one.start_offset == 6 and one.end_offset == 7
