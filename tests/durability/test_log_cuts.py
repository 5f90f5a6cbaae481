"""Bugs that the histories of test_log_history.py found, one test each."""

import errno
import struct

import crc32c
import pytest

from pylog._native.log import compaction
from pylog._native.log import log, replica_move
from pylog._native.records import batch
from pylog.log.replica_moves import directory_name
from tests.durability.simulated import FAIL_ONCE, FULL, NOTHING, SimulatedDisk
from tests.native.log.test_log import NOW, TOPIC_ID, make, offsets

CONFIG = {"internal.segment.bytes": 1_000, "index.interval.bytes": 1, "file.delete.delay.ms": 0,
          "retention.ms": -1}
COMPACTED = {**CONFIG, "cleanup.policy": "compact"}


@pytest.fixture
def disk(preload, ram):
    return SimulatedDisk(preload, ram, "ab")


def opened(disk, config=CONFIG, name="a", **known):
    directory = log.LogDir(disk.root / name, 1)
    directory.set_disk(disk.table)
    one = log.Log.open(directory, "t", 0, TOPIC_ID, config, now_ms=NOW, **known)
    one.become_leader(one.last_epoch + 1)
    return one


def cut(disk, one):
    """Cut the power: only synced data survives."""
    one.release()
    disk.power_cut(None)


def keyed(one, key, size=300):
    one.append(batch.build([(key, bytes(size), NOW, [])]), NOW)


def clean(one):
    one_pass = compaction.CleaningPass(one, compaction.OffsetMap(1 << 16), now_ms=NOW,
                                       first_dirty=0,
                                       delete_retention_ms=1 << 40, segment_bytes=1_000)
    try:
        while one_pass.step(1 << 20):
            pass
    finally:
        one_pass.close()


def test_record_is_compacted_only_if_its_successor_is_on_disk(disk):
    one = opened(disk, COMPACTED)
    keyed(one, b"k")
    one.flush()
    for _ in range(8):
        keyed(one, b"k")
    clean(one)
    assert one.flushed_offset >= 6
    cut(disk, one)
    again = opened(disk, COMPACTED)
    assert again.end_offset >= 6 and again.read(again.start_offset)


@pytest.mark.parametrize("calls", range(0, 40, 3))
def test_disk_failure_during_compaction_leaves_the_log_complete(disk, calls):
    one = opened(disk, COMPACTED)
    for key in range(12):
        keyed(one, b"%d" % (key % 5))
    one.flush()
    disk.arm(FAIL_ONCE, calls, errno.EIO)
    try:
        clean(one)
    except log.StorageError:
        assert disk.happened
    cut(disk, one)
    again = opened(disk, COMPACTED)
    found = {key for _, _, key, _, _ in batch.records(again.read(11))}
    assert again.end_offset == 12 and found == {b"1"}


def test_truncation_is_on_disk_before_the_next_append(disk):
    one = opened(disk)
    for _ in range(12):
        one.append(make(1, size=400), NOW)
    one.flush()
    assert one.truncate(4) == 4
    cut(disk, one)
    again = opened(disk, recovery_point=4)
    assert again.end_offset == 4 and offsets(again.read(0)) == [0, 1]


def test_truncated_segments_do_not_reappear_as_later_ones(disk):
    one = opened(disk)
    for _ in range(6):
        one.append(make(1, size=400), NOW)
    one.flush()
    cut(disk, one)
    # As if the last segment's name had reappeared: it begins within newer records.
    folder = disk.root / "a" / "t-0"
    last = sorted(folder.glob("*.log"))[-1]
    last.rename(folder / f"{1:020}.log")
    again = opened(disk)
    assert again.end_offset == 2 and offsets(again.read(0)) == [0, 1]


def test_log_opens_on_a_full_disk(disk):
    one = opened(disk)
    for _ in range(8):
        one.append(make(1, size=400), NOW)
    one.settle(NOW)
    one.release()
    for path in (disk.root / "a" / "t-0").iterdir():
        if path.suffix in (".index", ".timeindex") or path.name == "partition.metadata":
            path.unlink()
    directory = log.LogDir(disk.root / "a", 1)
    directory.set_disk(log.DISK_FULL)
    again = log.Log.open(directory, "t", 0, TOPIC_ID, CONFIG, now_ms=NOW, recovery_point=8)
    again.become_leader(1)
    assert again.end_offset == 8 and offsets(again.read(5, 1)) == [5]
    with pytest.raises(log.StorageError):
        again.append(make(1), NOW)
    assert not directory.offline
    directory.set_disk(log.DISK_SYSTEM)
    assert again.append(make(1), NOW) == (8, 8)


@pytest.mark.parametrize("config, start", [(COMPACTED, 0), (CONFIG, 4)])
def test_log_start_precedes_first_segment_only_after_compaction(disk, config, start):
    one = opened(disk, config)
    for _ in range(8):
        one.append(make(1, size=400), NOW)
    one.settle(NOW)
    one.release()
    for path in (disk.root / "a" / "t-0").glob("*.log"):
        if int(path.stem) < 4:
            path.unlink()
    again = opened(disk, config, log_start_offset=0, recovery_point=8)
    assert again.start_offset == start and offsets(again.read(start))[0] == 4


def test_producer_state_of_deleted_batches_survives_a_power_cut(disk):
    one = opened(disk)
    for sequence in range(6):
        one.append(make(1, size=400, producer_id=7, producer_epoch=0, base_sequence=sequence), NOW)
    one.flush()
    one.move_start(6, NOW)
    assert one.start_offset == one.end_offset == 6
    cut(disk, one)
    again = opened(disk, recovery_point=6, log_start_offset=6)
    try:
        again.append(make(1, producer_id=7, producer_epoch=0, base_sequence=6), NOW)
    except log.SequenceError as error:
        raise AssertionError("an older state of the producer was found") from error


def test_moved_log_continues_at_its_end_although_last_batches_are_lost(disk):
    one = opened(disk, COMPACTED)
    keyed(one, b"k")
    one.settle(NOW)
    one.release()
    (disk.root / "a" / "t-0" / f"{5:020}.log").touch()
    one = opened(disk, COMPACTED)
    assert one.end_offset == 5
    goal = log.LogDir(disk.root / "b", 1)
    to = log.Log.open(goal, "t", 0, TOPIC_ID, COMPACTED, now_ms=NOW, log_start_offset=0)
    while replica_move.copy(one, to, 1 << 20, NOW)[0]:
        pass
    replica_move.hand_over(one, to, NOW)
    to.become_leader(9)
    assert to.end_offset == 5 and to.append(make(1), NOW) == (5, 5)


def test_truncated_records_do_not_reappear_after_the_next_power_cut(disk):
    one = opened(disk, COMPACTED)
    for key in range(8):
        keyed(one, b"%d" % key, 400)
    one.flush()
    cut(disk, one)
    folder = disk.root / "a" / "t-0"
    first, second = sorted(folder.glob("*.log"))[:2]
    first.write_bytes(first.read_bytes()[:-5])
    again = opened(disk, COMPACTED)
    assert again.end_offset < int(second.stem) and not second.exists()
    cut(disk, again)
    assert opened(disk, COMPACTED).end_offset < int(second.stem)


def numbered(one, producer, sequence):
    return one.append(make(1, size=400, producer_id=producer, producer_epoch=0,
                           base_sequence=sequence), NOW)


def test_producers_last_flushed_batch_is_not_compacted_for_an_unflushed_one(disk):
    def send(to, sequence):
        return to.append(batch.build([(b"k", bytes(300), NOW, [])], producer_id=9,
                                     producer_epoch=0, base_sequence=sequence), NOW)
    one = opened(disk, COMPACTED)
    send(one, 0)
    for _ in range(8):
        keyed(one, b"k")
    one.flush()
    send(one, 1)
    clean(one)
    cut(disk, one)
    again = opened(disk, COMPACTED)
    end = again.end_offset
    # The producer resends its last unacknowledged batch.
    assert send(again, end - 9) == ((0, 0) if end == 9 else (9, 9))
    assert again.end_offset == end


def test_producer_state_does_not_include_batches_lost_in_a_power_cut(disk):
    one = opened(disk, COMPACTED)
    for sequence in range(6):
        numbered(one, 7, sequence)
    one.release()
    folder = disk.root / "a" / "t-0"
    logs = sorted(folder.glob("*.log"))
    lost = int(logs[1].stem)
    logs[1].write_bytes(b"")
    logs[2].write_bytes(logs[2].read_bytes()[:100])
    again = opened(disk, COMPACTED, recovery_point=lost, log_start_offset=0)
    assert again.end_offset == int(logs[2].stem)
    # The producer resends the lost, unacknowledged batches: they are not duplicates.
    assert numbered(again, 7, lost) == (again.end_offset - 1,) * 2


def test_producer_state_of_truncated_records_is_dropped(disk):
    one = opened(disk)
    numbered(one, 7, 0)
    numbered(one, 7, 1)
    one.settle(NOW)
    folder = disk.root / "a" / "t-0"
    disk.sync(folder / f"{2:020}.snapshot")
    disk.sync(folder)
    one.truncate(1)
    numbered(one, 8, 0)
    one.flush()
    cut(disk, one)
    again = opened(disk, recovery_point=2)
    assert again.end_offset == 2 and numbered(again, 7, 1) == (2, 2)


def test_failed_rename_in_truncation_takes_the_directory_offline(disk):
    one = opened(disk)
    for _ in range(6):
        one.append(make(1, size=400), NOW)
    disk.arm(FAIL_ONCE, 0, errno.EIO)
    with pytest.raises(log.StorageError):
        one.truncate(3)
    assert one.log_dir.offline


@pytest.mark.parametrize("calls", range(10))
def test_failed_flush_of_one_segment_does_not_advance_the_recovery_point(disk, calls):
    one = opened(disk)
    for _ in range(8):
        one.append(make(1, size=300), NOW)
    one.flush()
    one.release()
    # Every segment must be flushed again, and no roll triggers the flusher.
    again = opened(disk, recovery_point=0)
    assert again.end_offset == 8 and again.flushed_offset == 0
    disk.arm(FAIL_ONCE, calls, errno.EIO)
    with pytest.raises(log.StorageError):
        again.flush()
    assert disk.happened and again.log_dir.offline
    assert again.flushed_offset == again.recovery_point == 0


def test_flush_on_a_full_disk_postpones_the_epochs(disk):
    one = opened(disk)
    one.append(make(1, size=50), NOW)
    one.flush()
    one.append(make(1, size=50), NOW)
    one.become_leader(one.last_epoch + 1)
    epoch = one.last_epoch
    one.append(make(1, size=50), NOW)
    disk.arm(FULL, 0, 0)
    one.flush()
    assert disk.happened and not one.log_dir.offline and one.flushed_offset == 3
    # A start rebuilds missing state from the batches, so it must read them.
    point = one.recovery_point
    assert point == 1
    with pytest.raises(log.StorageError):
        one.settle(NOW)
    assert not one.log_dir.offline
    cut(disk, one)
    again = opened(disk, recovery_point=point)
    assert again.end_offset == 3
    assert [again.epoch_of(offset) for offset in (1, 2)] == [epoch - 1, epoch]
    again.append(make(1, size=50), NOW)
    disk.arm(FULL, 0, 0)
    again.flush()
    assert again.recovery_point < again.flushed_offset
    disk.arm(NOTHING)
    again.flush()
    assert again.recovery_point == again.flushed_offset


@pytest.mark.parametrize("stopped", [False, True])
def test_producer_snapshot_older_than_the_log_is_ignored(disk, stopped):
    one = opened(disk)
    for sequence in range(6):
        numbered(one, 7, sequence)
    one.settle(NOW)
    disk.arm(FULL, 2, 0)
    one.move_start(6, NOW)
    disk.arm(NOTHING)
    folder = disk.root / "a" / "t-0"
    for path in folder.glob("*.snapshot"):
        path.unlink()
    (folder / f"{2:020}.snapshot").write_bytes(snapshot(7, 1))
    one.release()
    again = opened(disk, recovery_point=6 if stopped else 0, log_start_offset=6)
    assert again.end_offset == 6 and numbered(again, 7, 6) == (6, 6)


def test_time_index_emptied_by_truncation_is_rebuilt(disk):
    one = opened(disk)
    for _ in range(3):
        one.append(make(1, size=300), NOW)
    one.append(make(1, size=900), NOW)
    one.flush()
    one.release()
    (disk.root / "a" / "t-0" / f"{0:020}.timeindex").write_bytes(b"")
    again = opened(disk, recovery_point=4, log_start_offset=0)
    assert again.offset_for_time(NOW)[0] == 0


def sealed_indexes(disk):
    """Return {name: content} of the index files of all segments but the last."""
    folder = disk.root / "a" / "t-0"
    bases = sorted(path.stem for path in folder.glob("*.log"))[:-1]
    found = {f"{base}.{kind}": (folder / f"{base}.{kind}").read_bytes()
             for base in bases for kind in ("index", "timeindex")}
    # A cleaned segment may contain a single batch, or only batches without records.
    for kind in ("index", "timeindex"):
        assert any(content for name, content in found.items() if name.endswith(f".{kind}")), found
    return found


def at_times(one, count, size=300):
    for at in range(count):
        one.append(batch.build([(b"%d" % (at % 5), bytes(size), NOW + at, [])]), NOW)


def test_indexes_of_sealed_segments_are_on_disk_when_the_recovery_point_passes_them(disk):
    one = opened(disk)
    at_times(one, 12)
    one.flush()
    before, point = sealed_indexes(disk), one.recovery_point
    assert point == 12
    cut(disk, one)
    assert sealed_indexes(disk) == before
    again = opened(disk, recovery_point=point)
    assert [again.offset_for_time(NOW + at)[0] for at in range(12)] == list(range(12))


def test_indexes_of_a_cleaned_segment_are_on_disk_after_the_pass(disk):
    one = opened(disk, COMPACTED)
    at_times(one, 20)
    one.flush()
    clean(one)
    before = sealed_indexes(disk)
    one.release()
    disk.power_cut(None)
    assert sealed_indexes(disk) == before


@pytest.mark.parametrize("renamed", ["source", "target"])
def test_directory_rename_is_on_disk_before_the_next_rename(disk, renamed):
    """Otherwise a power cut may leave a moved partition twice under its name, or not at all."""
    one = opened(disk)
    at_times(one, 12)
    goal = log.LogDir(disk.root / "b", 1)
    goal.set_disk(disk.table)
    copy = log.Log.open(goal, "t", 0, TOPIC_ID, CONFIG, now_ms=NOW,
                        directory=directory_name("t", 0, "future"))
    while replica_move.copy(one, copy, 1 << 20, NOW)[0]:
        pass
    replica_move.hand_over(one, copy, NOW)
    replica_move.rename(one, directory_name("t", 0, "delete"))
    if renamed == "target":
        replica_move.rename(copy, "t-0")
    copy.release()
    cut(disk, one)
    assert not (disk.root / "a" / "t-0").exists()
    kind = "t-0" if renamed == "target" else "t-0.*-future"
    folder, = (disk.root / "b").glob(kind)
    goal = log.LogDir(disk.root / "b", 1)
    again = log.Log.open(goal, "t", 0, TOPIC_ID, CONFIG, now_ms=NOW, recovery_point=12,
                         directory=folder.name)
    assert again.end_offset == 12 and offsets(again.read(0))[0] == 0


def snapshot(producer, sequence):
    """Return a snapshot file with one producer's state."""
    body = struct.pack(">iqhiqiqiq", 1, producer, 0, sequence, sequence, 0, NOW, -1, -1)
    return struct.pack(">hI", 1, crc32c.crc32c(body)) + body
