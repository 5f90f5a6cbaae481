"""A leader's high watermark, advanced by its followers' fetches and by metadata."""

import random
import select
import time

import pytest

from pylog._native.log import log
from pylog._native.log.flush_waits import FlushWaits
from pylog._native.records import batch

NOW = 1_700_000_000_000
SECOND = 1_000_000_000
TOPIC_ID = bytes(range(16))
SELF = 1


def make(count=1):
    return batch.build([(None, b"x", NOW, [])] * count)


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


def led(directory, config=None, epoch=0, in_sync_count=1):
    partition_log = log.Log.open(directory, "t", 0, TOPIC_ID, config, now_ms=NOW)
    partition_log.become_leader(epoch, in_sync_count, replicated=True)
    return partition_log


def replica(broker_id, in_isr=True, in_maximal=None, epoch=7):
    return broker_id, epoch, in_isr, in_isr if in_maximal is None else in_maximal


def fetch(partition_log, broker_id, offset, at_ns=None, epoch=7):
    return partition_log.follower_at(broker_id, epoch, offset, 0, at_ns or now_ns())


def test_the_high_watermark_is_the_smallest_end_of_the_isr(directory):
    one = led(directory, in_sync_count=3)
    assert one.set_replicas(0, SELF, [replica(SELF), replica(2), replica(3)], 3)
    one.append(make(10), NOW)
    assert one.high_watermark == 0
    fetch(one, 2, 10)
    assert one.high_watermark == 0
    fetch(one, 3, 4)
    assert one.high_watermark == 4
    fetch(one, 3, 10)
    assert one.high_watermark == 10


def test_high_watermark_waits_for_a_replica_joining_the_isr(directory):
    one = led(directory, in_sync_count=2)
    one.set_replicas(0, SELF, [replica(2), replica(3, False, True)], 2)
    one.append(make(10), NOW)
    fetch(one, 2, 10)
    assert one.high_watermark == 0
    fetch(one, 3, 6)
    assert one.high_watermark == 6


def test_high_watermark_never_decreases(directory):
    one = led(directory, in_sync_count=2)
    one.set_replicas(0, SELF, [replica(2)], 2)
    one.append(make(10), NOW)
    fetch(one, 2, 10)
    fetch(one, 2, 3)
    assert one.high_watermark == 10
    one.set_replicas(1, SELF, [replica(2, epoch=8)], 2)
    assert one.high_watermark == 10


def test_high_watermark_stays_below_min_insync_replicas(directory):
    one = led(directory, {"min.insync.replicas": 2}, in_sync_count=2)
    one.set_replicas(0, SELF, [replica(2)], 2)
    one.append(make(10), NOW)
    fetch(one, 2, 10)
    one.set_replicas(1, SELF, [replica(2, False)], 1, ineligible={2})
    one.append(make(10), NOW)
    assert one.high_watermark == 10
    one.set_config({"min.insync.replicas": 1})
    assert one.high_watermark == 20


def test_min_insync_replicas_is_limited_to_the_replica_count(directory):
    one = led(directory, {"min.insync.replicas": 3}, in_sync_count=2)
    one.set_replicas(0, SELF, [replica(2)], 2)
    one.append(make(10), NOW)
    fetch(one, 2, 10)
    assert one.high_watermark == 10


def test_single_in_sync_replica_advances_the_high_watermark_by_appends(directory):
    one = led(directory, in_sync_count=2)
    one.append(make(5), NOW)
    one.set_replicas(0, SELF, [replica(2, False)], 1, ineligible={2})
    assert one.high_watermark == 5
    one.append(make(5), NOW)
    assert one.high_watermark == 10


def test_high_watermark_stays_until_the_replicas_are_known(directory):
    one = led(directory, in_sync_count=1)
    one.append(make(5), NOW)
    assert one.high_watermark == 0
    one.set_replicas(0, SELF, [], 1)
    assert one.high_watermark == 5


def test_busy_leader_waits_for_a_follower_about_to_join(directory):
    one = led(directory, in_sync_count=1)
    one.set_replicas(0, SELF, [replica(2, False)], 1)
    one.append(make(10), NOW)
    assert one.high_watermark == 10
    begun = now_ns()
    assert not fetch(one, 2, 0, begun)
    one.append(make(10), NOW)
    assert one.high_watermark == 20
    # It has all records that existed at its previous fetch: it is caught up despite newer ones.
    assert not fetch(one, 2, 10, begun + 1)
    one.append(make(10), NOW)
    assert one.high_watermark == 20
    assert fetch(one, 2, 20, begun + 2)
    one.append(make(10), NOW)
    assert one.high_watermark == 20
    fetch(one, 2, 30, begun + 3)
    assert one.high_watermark == 30


def test_high_watermark_does_not_wait_for_a_silent_follower(directory):
    one = led(directory, {"replica.lag.time.max.ms": 10000}, in_sync_count=1)
    one.set_replicas(0, SELF, [replica(2, False)], 1)
    fetch(one, 2, 0, now_ns() - 11 * SECOND)
    one.append(make(10), NOW)
    assert one.high_watermark == 10
    fetch(one, 2, 10)
    one.append(make(10), NOW)
    assert one.high_watermark == 10


def test_high_watermark_does_not_wait_for_a_follower_that_cannot_join(directory):
    one = led(directory, in_sync_count=1)
    one.set_replicas(0, SELF, [replica(2, False)], 1, ineligible={2})
    assert not fetch(one, 2, 0)
    one.append(make(10), NOW)
    assert one.high_watermark == 10
    one.set_replicas(0, SELF, [replica(2, False)], 1)
    assert fetch(one, 2, 10)


def test_follower_joins_once_per_metadata_update(directory):
    one = led(directory, in_sync_count=1)
    one.set_replicas(0, SELF, [replica(2, False)], 1)
    one.append(make(10), NOW)
    assert not fetch(one, 2, 9)
    assert fetch(one, 2, 10)
    assert not fetch(one, 2, 10)
    one.set_replicas(0, SELF, [replica(2, False, True)], 1)
    assert not fetch(one, 2, 10)
    one.set_replicas(0, SELF, [replica(2, False)], 1)
    assert fetch(one, 2, 10)


def test_follower_below_the_leaders_first_high_watermark_cannot_join(directory):
    one = led(directory, in_sync_count=2)
    one.set_replicas(0, SELF, [replica(2)], 2)
    one.append(make(10), NOW)
    one.become_follower(1)
    one.become_leader(2, 2, replicated=True)
    one.set_replicas(1, SELF, [replica(2), replica(3, False)], 2)
    assert one.high_watermark == 0
    assert not one.high_watermark_is_current
    assert not fetch(one, 3, 5)
    fetch(one, 2, 10)
    assert one.high_watermark_is_current
    assert fetch(one, 3, 10)


def test_restarted_broker_is_not_confused_with_its_previous_run(directory):
    one = led(directory, in_sync_count=2)
    one.set_replicas(0, SELF, [replica(2, epoch=7)], 2)
    one.append(make(10), NOW)
    fetch(one, 2, 5, epoch=7)
    one.set_replicas(1, SELF, [replica(2, False, epoch=8)], 1)
    assert one.followers()[0][:4] == (2, -1, -1, -1)
    with pytest.raises(log.NotLeader):
        fetch(one, 2, 10, epoch=7)
    assert not fetch(one, 2, 9, epoch=-1)
    # A newer epoch: the metadata has not arrived here yet.
    assert not fetch(one, 2, 10, epoch=9)
    assert fetch(one, 2, 10, epoch=8)


def test_fetches_of_a_restarted_broker_survive_the_metadata_update(directory):
    one = led(directory, in_sync_count=1)
    one.set_replicas(0, SELF, [replica(2, False, epoch=7)], 1)
    one.append(make(10), NOW)
    assert not fetch(one, 2, 10, epoch=8)
    one.set_replicas(1, SELF, [replica(2, False, epoch=8)], 1)
    assert one.followers()[0][:3] == (2, 8, 10)
    one.set_replicas(2, SELF, [replica(2, False, epoch=9)], 1)
    assert one.followers()[0][:3] == (2, -1, -1)


def test_positions_survive_an_isr_change_and_end_with_the_epoch(directory):
    one = led(directory, in_sync_count=2)
    one.set_replicas(0, SELF, [replica(2), replica(3, False)], 2)
    one.append(make(10), NOW)
    at = now_ns()
    one.follower_at(2, 7, 8, 3, at)
    one.become_leader(0, 3, replicated=True)
    one.set_replicas(1, SELF, [replica(3), replica(2)], 3)
    assert one.followers()[1][:5] == (2, 7, 8, 3, at)
    one.become_leader(1, 3, replicated=True)
    assert one.followers() == []
    one.set_replicas(2, SELF, [replica(2)], 2)
    assert one.followers()[0][:5] == (2, -1, -1, -1, 0)
    assert one.followers()[0][5] > 0


def test_an_older_partition_epoch_changes_nothing(directory):
    one = led(directory, in_sync_count=2)
    assert one.set_replicas(5, SELF, [replica(2)], 2)
    assert not one.set_replicas(4, SELF, [replica(2), replica(3)], 3)
    assert (len(one.followers()), one.in_sync_count) == (1, 2)
    assert one.set_replicas(5, SELF, [replica(2), replica(3)], 3)


def test_unknown_replicas_and_non_leaders_are_rejected(directory):
    one = led(directory, in_sync_count=2)
    one.set_replicas(0, SELF, [replica(2)], 2)
    with pytest.raises(log.LogError) as refused:
        fetch(one, 9, 0)
    assert refused.value.code == 75
    for outside in (-1, 1):
        with pytest.raises(log.OffsetOutOfRange):
            fetch(one, 2, outside)
    one.become_follower(1)
    with pytest.raises(log.NotLeader):
        fetch(one, 2, 0)
    with pytest.raises(log.NotLeader):
        one.set_replicas(1, SELF, [replica(2)], 2)


def test_unflushed_records_do_not_count_with_flush_before_fetch(directory):
    one = led(directory, {"replica.flush.before.fetch.enable": True}, in_sync_count=2)
    one.set_replicas(0, SELF, [replica(2)], 2)
    directory.set_disk(log.DISK_SYSTEM)
    one.append(make(10), NOW)
    flushed = one.flushed_offset
    fetch(one, 2, 10)
    assert one.high_watermark in (flushed, 10)
    one.flush()
    assert one.high_watermark == 10


def test_acks_all_waits_for_the_leaders_flush_after_the_first_follower_joined(directory):
    one = led(directory, {"replica.flush.before.fetch.enable": True,
                          "log.flush.acks.all.enable": True})
    one.set_replicas(0, SELF, [], 1)
    one.append(make(10), NOW)
    assert (one.high_watermark, one.flushed_offset) == (10, 0)  # The only replica.
    one.set_replicas(1, SELF, [replica(2, False)], 1)
    assert fetch(one, 2, 10)
    one.set_replicas(2, SELF, [replica(2)], 2)
    waits = FlushWaits(1)
    end_s = time.monotonic() + 60
    while not waits.wait_acknowledged(0, one, 9):
        assert select.select([waits], [], [], end_s - time.monotonic())[0]
        assert waits.take() == [0]
    assert one.flushed_offset == 10


@pytest.fixture
def seed(request):
    number = random.randrange(2**32)
    print("seed", number)
    return number


def test_against_a_model_of_the_rules(directory, seed):
    chance = random.Random(seed)
    one = led(directory, in_sync_count=1)
    epoch, high, ends, maximal, end = 0, 0, {}, set(), 0
    one.set_replicas(epoch, SELF, [], 1)
    for _ in range(300):
        action = chance.randrange(4)
        if action == 0:
            one.append(make(chance.randint(1, 3)), NOW)
            end = one.end_offset
        elif action == 1 and ends:
            broker_id = chance.choice(sorted(ends))
            ends[broker_id] = chance.randint(max(ends[broker_id], 0), end)
            fetch(one, broker_id, ends[broker_id])
        elif action == 2:
            epoch += 1
            members = chance.sample((2, 3, 4), chance.randint(0, 3))
            maximal = {broker_id for broker_id in members if chance.random() < 0.6}
            isr = {broker_id for broker_id in maximal if chance.random() < 0.7}
            one.set_replicas(epoch, SELF, [
                (broker_id, 7, broker_id in isr, broker_id in maximal) for broker_id in members],
                len(isr) + 1, ineligible=set(members))
            ends = {broker_id: ends.get(broker_id, -1) for broker_id in members}
        high = max(high, min((ends[broker_id] for broker_id in maximal), default=end))
        assert one.high_watermark == high
        assert one.last_stable_offset == high
