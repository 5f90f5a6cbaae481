"""A follower's log: which of a leader's bytes it accepts, and its state after a truncation."""

import pytest

from pylog._native.log import log
from pylog._native.records import batch
from tests.native.log.test_log import NOW, TOPIC_ID, checkpoint_of, make, opened


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


def test_follower_appends_batches_unchanged(directory, tmp_path):
    leader = opened(directory)
    for i in range(20):
        leader.append(make(1 + i % 3), NOW)
    follower = opened(directory, "f", leader=False)
    follower.become_follower(0)
    at = 0
    while at < leader.end_offset:
        data = leader.read(at, 700)
        follower.append_as_follower(data, NOW)
        at = follower.end_offset
    assert follower.read(0) == leader.read(0)
    assert follower.high_watermark == 0
    assert follower.last_epoch == 0
    damaged = bytearray(make(1))
    damaged[-1] ^= 1
    with pytest.raises(log.CorruptLog):
        batch.stamp(damaged, at, 0)
        follower.append_as_follower(damaged, NOW)


def test_follower_ignores_an_incomplete_batch_until_the_next_fetch(directory):
    leader, follower = opened(directory), opened(directory, "f", leader=False)
    for _ in range(3):
        leader.append(make(2), NOW)
    data = leader.read(0)
    size = len(data) // 3
    follower.become_follower(0)
    for cut in (1, 11, 12, 60, 61, size - 1):
        assert follower.append_as_follower(data[:cut], NOW) == 0
    assert follower.end_offset == 0
    assert follower.append_as_follower(data[:size + 16], NOW) == size
    assert follower.end_offset == 2
    assert follower.append_as_follower(data[size:], NOW) == 2 * size
    assert follower.read(0) == data


def test_incomplete_batch_does_not_change_a_copy_with_a_later_start(directory):
    leader = opened(directory)
    leader.append(make(4), NOW)
    data = leader.read(0)
    copy = log.Log.open(directory, "late", 0, TOPIC_ID, None, now_ms=NOW, log_start_offset=2)
    copy.become_follower(0)
    assert (copy.start_offset, copy.end_offset) == (2, 2)
    assert copy.append_as_follower(data[:-1], NOW) == 0
    assert (copy.start_offset, copy.end_offset) == (2, 2)
    assert copy.append_as_follower(data, NOW) == len(data)
    assert (copy.start_offset, copy.end_offset) == (2, 4)


def test_truncation_to_the_end_removes_an_epoch_without_records(directory):
    one = opened(directory)
    one.append(make(5), NOW)
    one.become_leader(3)
    assert one.end_for_epoch(3) == (3, 5)
    one.become_follower(4)
    assert one.end_for_epoch(3) == (3, 5)
    assert one.truncate(5) == 5
    assert one.end_for_epoch(3) == (-1, -1)
    assert one.last_epoch == one.epoch_of(4) == 0
    one.close(NOW)
    again = opened(directory, leader=False)
    assert again.last_epoch == 0


def test_idle_log_removes_an_epoch_without_records(directory):
    one = opened(directory)
    one.append(make(5), NOW)
    one.become_leader(3)
    one.settle(NOW)
    saved = checkpoint_of(one)
    one.close(NOW)
    again = opened(directory, leader=False, **saved)
    assert again.last_epoch == 3
    again.become_follower(4)
    assert again.truncate(9) == 5
    assert again.last_epoch == 0


def test_restarted_log_is_empty_at_the_leaders_log_start(directory, tmp_path):
    config = {"internal.segment.bytes": 1_000}
    one = opened(directory, config=config)
    for i in range(30):
        one.append(make(1, producer_id=5, producer_epoch=0, base_sequence=i), NOW)
    one.settle(NOW)
    one.become_follower(3)
    one.restart_at(100, 3)
    assert (one.start_offset, one.end_offset, one.high_watermark) == (100, 100, 100)
    assert (one.last_epoch, one.size_bytes, one.recovery_point) == (-1, 0, 100)
    assert one.read(100) == b""
    with pytest.raises(log.OffsetOutOfRange):
        one.read(29)
    made = bytearray(make(2, producer_id=5, producer_epoch=0, base_sequence=70))
    batch.stamp(made, 100, 3)
    assert one.append_as_follower(made, NOW) == len(made)
    assert one.read(100) == made
    one.close(NOW)
    assert [path.name for path in (tmp_path / "t-0").glob("*.log")] == ["00000000000000000100.log"]
    again = opened(directory, leader=False, config=config)
    assert (again.start_offset, again.end_offset, again.last_epoch) == (100, 102, 3)


def test_log_can_restart_below_its_start(directory):
    one = opened(directory)
    one.append(make(9), NOW)
    one.become_follower(1)
    one.restart_at(4)
    assert (one.start_offset, one.end_offset, one.flushed_offset) == (4, 4, 4)
    with pytest.raises(log.OffsetOutOfRange):
        one.restart_at(2**63 - 1)


def test_only_a_follower_of_the_given_epoch_is_truncated(directory):
    one = opened(directory)
    one.append(make(9), NOW)
    for late in (lambda: one.truncate(4, 0), lambda: one.restart_at(4, 0)):
        one.become_leader(2)
        with pytest.raises(log.NotLeader):
            late()
        one.become_follower(3)
        with pytest.raises(log.NotLeader):
            late()
    assert one.end_offset == 9
    assert one.truncate(4, 3) == 0
    one.restart_at(50, 3)
    assert one.end_offset == 50


def test_log_restarted_inside_a_batch_stores_it_completely(directory):
    one = opened(directory)
    one.append(make(2), NOW)
    one.become_follower(1)
    one.restart_at(23)
    made = bytearray(make(5))
    batch.stamp(made, 20, 1)
    assert one.append_as_follower(made, NOW) == len(made)
    assert (one.start_offset, one.end_offset) == (23, 25)
    assert one.read(23) == made


def test_epoch_without_records_is_replaced_by_a_record_of_an_older_one(directory):
    # It led for a moment; the next leader has a record of the previous epoch that it lacks.
    one = opened(directory, leader=False)
    one.become_follower(1)
    one.append_as_follower(batch.build([(None, b"x", NOW, ())] * 5, base_offset=0,
                                       leader_epoch=1), NOW)
    one.become_leader(3, 2, replicated=True)
    one.become_follower(4)
    one.append_as_follower(batch.build([(None, b"x", NOW, ())], base_offset=5,
                                       leader_epoch=1), NOW)
    assert [one.epoch_of(offset) for offset in range(6)] == [1] * 6
    assert one.end_for_epoch(1) == (1, 6)
