"""Last stable offset and aborted transactions of a log after random steps and faults."""

import errno
import struct

import pytest

from pylog._native.log import compaction, log
from pylog._native.records import batch
from pylog.log import partition_logs
from tests.durability.simulated import FAIL_ONCE, FULL, NOTHING, SimulatedDisk
from tests.durability.test_log_cuts import COMPACTED, CONFIG, clean, cut, keyed, opened
from tests.durability.transactions import ABORT, COMMIT, marker
from tests.native.log.test_log import NOW, TOPIC_ID, make


@pytest.fixture
def disk(preload, ram):
    return SimulatedDisk(preload, ram, "ab")


def write(one, producer, sequence=0, size=50, key=b"k"):
    data = batch.build([(key, bytes(size), NOW, [])], producer_id=producer, producer_epoch=0,
                       base_sequence=sequence, attributes=batch.TRANSACTIONAL)
    return one.append(data, NOW)[0]


def end(one, producer, type_):
    return one.append(marker(producer, type_, NOW)[1], NOW, trusted=True)[0]


def aborted(one):
    return one.aborted_between(one.start_offset, one.end_offset)


def entries(disk, base, name="a"):
    data = (disk.root / name / "t-0" / f"{base:020}.txnindex").read_bytes()
    return list(struct.iter_unpack(">hqqqq", data))


def test_abort_is_visible_immediately_and_its_entry_has_kafkas_format(disk):
    one = opened(disk)
    write(one, 1)
    write(one, 2)
    assert one.last_stable_offset == 0
    end(one, 1, ABORT)
    assert (one.last_stable_offset, aborted(one)) == (1, [(1, 0)])
    end(one, 2, COMMIT)
    assert (one.last_stable_offset, aborted(one)) == (4, [(1, 0)])
    one.flush()
    assert entries(disk, 0) == [(0, 1, 0, 2, 1)]


def test_marker_without_a_transaction_aborts_nothing(disk):
    one = opened(disk)
    assert end(one, 1, ABORT) == 0
    assert (one.last_stable_offset, aborted(one)) == (1, [])


def test_producer_in_a_transaction_cannot_write_other_batches(disk):
    one = opened(disk)
    write(one, 1)
    with pytest.raises(log.LogError) as refused:
        one.append(make(1, producer_id=1, producer_epoch=0, base_sequence=1), NOW)
    assert refused.value.code == 48


@pytest.mark.parametrize("point", [0, 3, 7])
def test_aborted_transactions_are_known_after_a_power_cut(disk, point):
    one = opened(disk)
    for number in range(4):
        write(one, number, size=400)
        end(one, number, ABORT if number % 2 else COMMIT)
    write(one, 9)
    one.flush()
    cut(disk, one)
    for path in (disk.root / "a" / "t-0").glob("*.txnindex"):
        if int(path.stem) >= point:
            path.write_bytes(b"what a cut left")
    again = opened(disk, recovery_point=point)
    assert (aborted(again), again.last_stable_offset) == ([(1, 2), (3, 6)], 8)
    assert again.open_transaction == 8


def test_truncated_marker_reopens_its_transaction(disk):
    one = opened(disk)
    write(one, 1)
    last = end(one, 1, ABORT)
    one.flush()
    one.truncate(last)
    assert (one.last_stable_offset, aborted(one)) == (0, [])
    for _ in range(3):
        one.append(make(1, size=20), NOW)
    one.flush()
    cut(disk, one)
    again = opened(disk, recovery_point=4)
    assert (again.last_stable_offset, aborted(again)) == (0, [])
    end(again, 1, COMMIT)
    assert (again.last_stable_offset, aborted(again)) == (5, [])


def test_last_stable_offset_is_never_below_the_log_start(disk):
    one = opened(disk)
    write(one, 1)
    for _ in range(4):
        one.append(make(1, size=400), NOW)
    one.move_start(3, NOW)
    assert one.last_stable_offset == 3
    end(one, 1, ABORT)
    assert one.last_stable_offset == one.end_offset


def test_a_transaction_is_stable_when_its_marker_is_replicated(disk):
    one = opened(disk)
    one.become_leader(5, in_sync_count=2)
    write(one, 1)
    end(one, 1, ABORT)
    one.advance_high_watermark(1)
    assert one.last_stable_offset == 0
    one.advance_high_watermark(2)
    assert one.last_stable_offset == 2


def test_an_open_transaction_is_open_after_a_clean_stop(disk):
    one = opened(disk)
    write(one, 1)
    one.settle(NOW)
    checkpoint = partition_logs.at_rest(one)
    assert checkpoint.log_end_offset < 0 and checkpoint.recovery_point == 1
    one.release()
    assert opened(disk, recovery_point=1).last_stable_offset == 0


def test_transactions_end_on_a_full_disk_and_their_index_is_postponed(disk):
    one = opened(disk)
    write(one, 1)
    one.flush()
    end(one, 1, ABORT)
    disk.arm(FULL, 0, 0)
    one.flush()
    assert disk.happened and not one.log_dir.offline
    assert (one.flushed_offset, one.recovery_point, aborted(one)) == (2, 1, [(1, 0)])
    cut(disk, one)
    again = opened(disk, recovery_point=1)
    assert aborted(again) == [(1, 0)]
    again.flush()
    assert again.recovery_point == 2 and entries(disk, 0) == [(0, 1, 0, 1, 2)]


def test_aborted_records_above_the_stable_offset_supersede_nothing(disk):
    one = opened(disk, COMPACTED)
    keyed(one, b"a")
    write(one, 1, key=b"a", size=300)
    keyed(one, b"b")
    for number in range(4):
        keyed(one, b"%d" % number)
    write(one, 2, key=b"x")
    end(one, 1, ABORT)
    for number in range(4):
        keyed(one, b"%d" % number)
    assert one.last_stable_offset == 7
    clean(one)
    found = [(header.base_offset, header.producer_id) for offset in (0, 2)
             for _, header in batch.walk(memoryview(one.read(offset, 1)))]
    assert found[:1] == [(0, -1)]


def test_compaction_retains_the_first_marker_of_a_producer_epoch(disk):
    one = opened(disk, COMPACTED)
    data = bytearray(marker(1, ABORT, NOW)[1])
    write(one, 1, key=b"x", size=300)
    later = batch.build([(*marker(1, ABORT, NOW)[0], [])], producer_id=1, producer_epoch=4,
                        attributes=batch.CONTROL | batch.TRANSACTIONAL)
    assert len(later) == len(data)
    one.append(later, NOW, trusted=True)
    for turn in range(3):
        for number in range(6):
            keyed(one, b"%d" % number)
        one_pass = compaction.CleaningPass(one, compaction.OffsetMap(1 << 16), now_ms=NOW + turn,
                                        first_dirty=0, delete_retention_ms=0, segment_bytes=1_000)
        while one_pass.step(1 << 20):
            pass
        one_pass.close()
    one.flush()
    one.release()
    for path in (disk.root / "a" / "t-0").glob("*.snapshot"):
        path.unlink()
    again = opened(disk, COMPACTED)
    with pytest.raises(log.SequenceError):
        write(again, 1, sequence=1)


def test_retention_whose_rename_fails_leaves_no_gap(disk):
    one = opened(disk)
    for _ in range(10):
        one.append(make(1, size=400), NOW)
    one.flush()
    disk.arm(FAIL_ONCE, 0, errno.EIO)
    with pytest.raises(log.StorageError):
        one.move_start(8, NOW)
        one.append(make(1), NOW)
    one.release()
    disk.arm(NOTHING)
    again = log.Log.open(log.LogDir(disk.root / "a", 1), "t", 0, TOPIC_ID, CONFIG, now_ms=NOW)
    assert again.end_offset == 10


def test_rebuilt_transaction_index_removes_no_later_epoch(disk):
    one = opened(disk)
    for epoch in range(1, 5):
        for _ in range(2):
            one.append(make(1, size=400), NOW)
        one.become_leader(one.last_epoch + epoch)
    one.move_start(1, NOW)
    one.flush()
    expected = [one.epoch_of(offset) for offset in range(1, 8)]
    one.release()
    first = min((disk.root / "a" / "t-0").glob("*.index"))
    first.unlink()
    again = opened(disk, recovery_point=8, log_start_offset=1)
    assert [again.epoch_of(offset) for offset in range(1, 8)] == expected


def test_compacted_log_truncated_in_a_gap_ends_there(disk):
    one = opened(disk, COMPACTED)
    keyed(one, b"a")
    keyed(one, b"b", 20)
    one.become_follower(1)
    far = bytearray(batch.build([(b"k", b"v", NOW, [])]))
    batch.stamp(far, 9, 1)
    one.append_as_follower(far, NOW)
    assert one.truncate(5) == 5 and one.end_offset == 5
