"""A share partition on a real log: deliverable offsets, and effects of a truncation."""

import asyncio
import struct
from types import SimpleNamespace

import pytest

from pylog._native.log.log import Log, LogDir
from pylog._native.records import batch
from pylog.coordinator.share.partition_state import ShareKey
from pylog.coordinator.share.shard import ShareStates
from pylog.protocol.errors import ErrorCode
from pylog.share.acknowledgement_types import ACCEPT, REJECT, RELEASE
from pylog.share.in_flight import Limits, Wanted
from pylog.share.metrics import GroupMetrics
from pylog.share.share_partition import SharePartition
from tests.coordinator.world import Clock

NOW = 1_700_000_000_000
TOPIC_ID = b"t" * 16
KEY = ShareKey("g", TOPIC_ID, 0)
LIMITS = Limits(lock_ms=1_000_000, deliveries_max=5, records_max=2000, renews=True)
PRODUCER = 7
ABORT, COMMIT = 0, 1
UPDATES_MAX, COLD_MS = 500, 10**9


class States:
    """A share coordinator whose records are durable at once."""

    def __init__(self):
        self.refused = set()
        self.leader_epoch = 0
        self.state_machine = ShareStates(
            Clock(), lambda topic, index: self.leader_epoch, UPDATES_MAX, COLD_MS)
        self.state_machine.loaded()
        self.state_machine.initialize(KEY, 1, 0)

    def _refusal(self, name):
        return (ErrorCode.COORDINATOR_NOT_AVAILABLE, None) if name in self.refused else None

    async def initialize(self, key, state_epoch, start):
        return self._refusal("initialize") or self.state_machine.initialize(key, state_epoch, start)

    async def read(self, key, leader_epoch):
        found = self._refusal("read")
        return (found, None) if found else self.state_machine.read(key, leader_epoch)

    async def summary(self, key):
        found = self._refusal("summary")
        return (found, None) if found else self.state_machine.summary(key)

    async def write(self, key, state_epoch, leader_epoch, progress, batches):
        return self._refusal("write") or self.state_machine.write(
            key, state_epoch, leader_epoch, *progress(), batches)


class Partition:
    """One replica's log, its share partition while it leads, and the coordinator's states."""

    def __init__(self, path, states=None, begins="earliest", is_committed=False):
        self.log = Log.open(LogDir(path, 2), "t", 0, TOPIC_ID, now_ms=NOW)
        self.states = states or States()
        self.settings = SimpleNamespace(
            limits=lambda group: LIMITS, is_committed=lambda group: is_committed,
            begins=lambda group: begins)
        self.sequence = 0
        self.share = None

    def lead(self, epoch, in_sync_count=1):
        """Lead the log and load the share partition."""
        self.log.become_leader(epoch, in_sync_count, replicated=in_sync_count > 1)
        self.states.leader_epoch = epoch
        self.load()
        return self

    def load(self):
        self.share = SharePartition(
            KEY, self.log, self.log.leader_epoch, self.states, self.settings, GroupMetrics(),
            lambda partition: None, lambda partition: None, lambda: 0, lambda: NOW)
        asyncio.run(self.share.load())
        return self.share.error

    def append(self, count, now_ms=NOW, **fields):
        """Append `count` batches of one record each."""
        for _ in range(count):
            self.log.append(batch.build([(None, b"v", now_ms, ())], **fields), now_ms)

    def transact(self, count):
        for _ in range(count):
            self.append(1, producer_id=PRODUCER, producer_epoch=0, base_sequence=self.sequence,
                        attributes=batch.TRANSACTIONAL)
            self.sequence += 1

    def end_transaction(self, kind):
        self.log.append(batch.build(
            [(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), NOW, ())],
            producer_id=PRODUCER, producer_epoch=0,
            attributes=batch.TRANSACTIONAL | batch.CONTROL), NOW, trusted=True)

    def acquire(self, member="m"):
        """Acquire everything available; return [(first offset, last offset)]."""
        found = []
        while True:
            got = asyncio.run(self.share.acquire(Wanted(member, 500, 500, False), 1 << 20))
            if not got.rows:
                return found
            assert batch.edges(got.records)[0][-1][1] < self.log.high_watermark
            found += [(row.first, row.last) for row in got.rows]

    def acknowledge(self, first, last, kind=ACCEPT, member="m"):
        return asyncio.run(self.share.acknowledge(member, [(first, last, [kind])]))[0]


# ---- boundaries -------------------------------------------------------------------------------

@pytest.mark.parametrize("is_committed", [False, True])
def test_records_above_the_high_watermark_are_not_delivered(tmp_path, is_committed):
    one = Partition(tmp_path, is_committed=is_committed).lead(0, in_sync_count=2)
    one.append(10)
    assert one.acquire() == []
    one.log.advance_high_watermark(4)
    assert one.acquire() == [(0, 3)]
    assert one.acknowledge(0, 3) == ErrorCode.NONE
    assert one.share.in_flight.start == one.log.high_watermark == 4
    assert one.acquire() == []


def test_records_of_an_open_transaction_wait_for_its_end(tmp_path):
    one = Partition(tmp_path, is_committed=True).lead(0)
    one.append(2)
    one.transact(3)
    one.append(2)
    assert one.acquire() == [(0, 1)]
    one.end_transaction(COMMIT)
    assert one.acquire() == [(2, 7)]


def test_records_of_an_aborted_transaction_are_not_delivered(tmp_path):
    one = Partition(tmp_path, is_committed=True).lead(0)
    one.transact(3)
    one.append(2)
    assert one.acquire() == []
    one.end_transaction(ABORT)
    one.transact(1)
    assert one.acquire() == [(3, 5)]
    one.end_transaction(COMMIT)
    assert one.acquire() == [(6, 7)]


def test_read_uncommitted_group_gets_open_transactions(tmp_path):
    one = Partition(tmp_path).lead(0)
    one.transact(3)
    assert one.acquire() == [(0, 2)]


@pytest.mark.parametrize("begins", ["latest", 1000])
def test_a_group_does_not_start_above_the_high_watermark(tmp_path, begins):
    one = Partition(tmp_path, begins=begins)
    one.states.state_machine.initialize(KEY, 1, -1)
    one.log.become_leader(0, 2, replicated=True)
    one.append(5, now_ms=NOW - 5000)
    one.append(1)
    one.log.advance_high_watermark(3)
    one.load()
    assert one.share.in_flight.start == one.log.high_watermark == 3


# ---- truncation ---------------------------------------------------------------------------------

def truncated(one, end, epoch):
    """The leader loses its records from `end` on, and leads again in a later epoch."""
    one.log.become_follower(epoch - 1)
    one.log.truncate(end)
    one.lead(epoch)


def test_records_that_replace_lost_offsets_are_delivered(tmp_path):
    one = Partition(tmp_path).lead(0)
    one.append(20)
    one.acquire()
    assert one.acknowledge(0, 19) == ErrorCode.NONE
    one.log.become_follower(0)
    one.log.truncate(10)
    one.log.become_leader(1)
    one.append(15)
    one.lead(1)
    assert one.acquire() == [(10, 24)]
    assert one.acknowledge(10, 24) == ErrorCode.NONE
    one.log.become_follower(1)
    one.lead(2)
    assert one.acquire() == []


def test_states_of_lost_records_do_not_apply_to_later_records(tmp_path):
    one = Partition(tmp_path).lead(0)
    one.append(20)
    one.acquire()
    assert one.acknowledge(5, 7) == one.acknowledge(9, 19, REJECT) == ErrorCode.NONE
    truncated(one, 12, 1)
    one.append(8)
    # Another leader change: the coordinator must have removed the lost records, too.
    truncated(one, 20, 2)
    assert one.acquire() == [(0, 4), (8, 8), (12, 19)]


def test_a_state_of_lost_records_is_repaired_after_the_coordinator_was_unavailable(tmp_path):
    for step in ("summary", "read", "initialize", "write"):
        one = Partition(tmp_path / step).lead(0)
        one.append(20)
        one.acquire()
        assert one.acknowledge(5, 19) == ErrorCode.NONE
        one.states.refused.add(step)
        truncated(one, 10, 1)
        assert one.share.error == ErrorCode.COORDINATOR_NOT_AVAILABLE, step
        one.states.refused.clear()
        one.append(10)
        assert one.load() == ErrorCode.NONE
        found = one.acquire()
        # A failed write may lose the states of existing records, but nothing else.
        assert found in ([(0, 4), (10, 19)], [(0, 19)]) and (
            step == "write" or found == [(0, 4), (10, 19)]), (step, found)


def test_the_state_is_unchanged_when_nothing_was_lost(tmp_path):
    one = Partition(tmp_path).lead(0)
    one.append(20)
    one.acquire()
    assert one.acknowledge(0, 3) == one.acknowledge(6, 19) == ErrorCode.NONE
    one.log.become_follower(0)
    one.lead(1)
    assert one.states.state_machine.states[KEY].leader_epoch == 1
    assert one.acquire() == [(4, 5)]


def test_leader_starts_at_the_offset_set_by_an_administrator(tmp_path):
    one = Partition(tmp_path)
    one.log.become_leader(0)
    one.append(5)
    one.log.become_leader(3)
    one.append(10)
    one.states.leader_epoch = 3
    one.states.state_machine.initialize(KEY, 2, 12)
    one.lead(3)
    assert one.acquire() == [(12, 14)]


def test_records_acquired_from_the_last_leader_are_delivered_by_the_next_one(tmp_path):
    states = States()
    old, new = Partition(tmp_path / "old", states), Partition(tmp_path / "new", states)
    old.lead(0, in_sync_count=2)
    old.append(10)
    new.log.append_as_follower(old.log.read(0), NOW)
    old.log.advance_high_watermark(6)
    assert old.acquire() == [(0, 5)]
    assert old.acknowledge(0, 2) == ErrorCode.NONE
    new.lead(1)
    assert old.acknowledge(3, 5) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert new.acquire("n") == [(3, 9)]
    assert new.acknowledge(3, 5, RELEASE, "n") == ErrorCode.NONE
    assert new.acquire("n") == [(3, 5)]
