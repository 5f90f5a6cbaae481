"""The checker of share groups: histories with planted faults, and three replicas under failovers.

The replicas are real logs and the states a real coordinator's state machine; a seed chooses
replication, failures, acknowledgements, and the coordinator's outages.
"""

import asyncio
import random
from types import SimpleNamespace

import pytest

from pylog._native.log.log import BOUND_END, Log, LogDir
from pylog._native.records import batch
from pylog.coordinator.share.shard import FINE
from pylog.protocol.errors import ErrorCode
from pylog.share import share_partition
from pylog.share.acknowledgement_types import ACCEPT, REJECT, RELEASE
from pylog.share.in_flight import Limits, Wanted
from pylog.share.metrics import GroupMetrics
from pylog.share.share_partition import SharePartition
from tests.share.history import ACCEPTED, REJECTED, RELEASED, Delivery, History, Record
from tests.share.test_share_partition_bounds import KEY, NOW, TOPIC_ID, States

pytestmark = pytest.mark.timeout(240)
KINDS = {ACCEPTED: ACCEPT, REJECTED: REJECT, RELEASED: RELEASE}
LIMITS = Limits(lock_ms=1000, deliveries_max=4, records_max=500, renews=True)
MEMBERS, REPLICAS, STEPS, SEEDS = "abc", 3, 600, 10
DRAIN_ROUNDS_MAX = 50


class World:
    """One partition with three replicas, a producer that retries lost unacknowledged records, and
    the members of a group. is_unclean: replicas lose acknowledged records.
    """

    def __init__(self, path, seed, runner, is_unclean=False):
        self.random, self.runner, self.is_unclean = random.Random(seed), runner, is_unclean
        self.history = History(LIMITS.deliveries_max)
        self.states = States()
        self.logs = []
        for index in range(REPLICAS):
            directory = path / f"{seed}-{index}"
            directory.mkdir(parents=True)
            self.logs.append(Log.open(LogDir(directory, 2), "t", 0, TOPIC_ID, now_ms=NOW))
        self.values = [[] for _ in self.logs]  # values of each replica, by offset
        self.pending, self.held = [], []  # values, and (member, delivery)
        self.number = self.now_ms = 0
        self.leader, self.epoch, self.share = 0, -1, None
        self.elect(0)

    # ---- replicas -------------------------------------------------------------------------------

    def elect(self, leader):
        self.leader, self.epoch = leader, self.epoch + 1
        self.states.leader_epoch = self.epoch
        kept = self.values[leader]
        for index, log in enumerate(self.logs):
            if index == leader:
                log.become_leader(self.epoch, REPLICAS, replicated=True)
                continue
            log.become_follower(self.epoch)
            same = next((at for at, (one, other) in enumerate(zip(self.values[index], kept))
                         if one != other), min(len(self.values[index]), len(kept)))
            if same < len(self.values[index]):
                log.truncate(same)
                del self.values[index][same:]
        self.held, self.share = [], None
        again, self.pending = [value for value in self.pending if value not in kept], [
            value for value in self.pending if value in kept]
        # Requests that are retried after a failover arrive in any order.
        self.random.shuffle(again)
        for value in again:
            self.append(value)

    def lose(self):
        """All replicas lose their last records, also acknowledged ones: a power failure."""
        end = max(0, len(self.values[self.leader]) - self.random.randrange(1, 15))
        for log, values in zip(self.logs, self.values):
            log.become_follower(self.epoch)
            if len(values) > end:
                for value in values[end:]:
                    self.history.lost(value)
                log.truncate(end)
                del values[end:]

    def append(self, value):
        self.logs[self.leader].append(batch.build([(None, value, NOW, ())]), NOW)
        self.values[self.leader].append(value)
        self.pending.append(value)

    def produce(self):
        for _ in range(self.random.randrange(1, 8)):
            value, self.number = b"%d" % self.number, self.number + 1
            self.history.sent(value)
            self.append(value)

    def replicate(self, index):
        if index != self.leader:
            log, values = self.logs[index], self.values[self.leader]
            upto = self.random.randrange(len(self.values[index]), len(values) + 1)
            while log.end_offset < upto:
                data = self.logs[self.leader].read(log.end_offset, 1)
                self.values[index].append(values[log.end_offset])
                log.append_as_follower(data, NOW)
        self.advance()

    def advance(self):
        high = min(log.end_offset for log in self.logs)
        for log in self.logs:
            log.advance_high_watermark(high)
        done = [value for value in self.pending
                if self.values[self.leader].index(value) < self.logs[self.leader].high_watermark]
        for value in done:
            self.pending.remove(value)
            self.history.written(value, Record(0, self.values[self.leader].index(value)))

    # ---- members --------------------------------------------------------------------------------

    def served(self):
        """Return the leader's share partition, after its state is read."""
        if self.share is None or self.share.error != ErrorCode.NONE:
            settings = SimpleNamespace(limits=lambda group: LIMITS, begins=lambda group: "earliest",
                                       is_committed=lambda group: False)
            self.share = SharePartition(
                KEY, self.logs[self.leader], self.epoch, self.states, settings, GroupMetrics(),
                lambda partition: None, lambda partition: None, lambda: self.now_ms, lambda: NOW)
            self.runner.run(self.share.load())
        return self.share

    def acquire(self, records_max):
        member = self.random.choice(MEMBERS)
        got = self.runner.run(self.served().acquire(
            Wanted(member, records_max, 500, False), 1 << 20))
        values = {offset: value for position, _ in batch.walk(got.records)
                  for offset, _, _, value, _ in batch.records(
                      memoryview(got.records)[position:])}
        for row in got.rows:
            for offset in range(row.first, row.last + 1):
                found = Delivery(Record(0, offset), values[offset], row.deliveries)
                self.history.delivered(found)
                self.held.append((member, found))
        return len(got.rows)

    def acknowledge(self, index, kind):
        member, found = self.held.pop(index)
        offset = found.record.offset
        error, _ = self.runner.run(self.served().acknowledge(
            member, [(offset, offset, [KINDS[kind]])]))
        if error == ErrorCode.NONE:
            self.history.acknowledged(found.value, kind)
        else:
            self.history.refused(found.value, kind, error.name, True)

    # ---- schedule -------------------------------------------------------------------------------

    def step(self):
        turn = self.random.random()
        if self.random.random() < 0.1:
            self.states.refused.clear()
        if turn < 0.12:
            self.produce()
        elif turn < 0.4:
            self.replicate(self.random.randrange(REPLICAS))
        elif turn < 0.62:
            self.acquire(self.random.randrange(1, 40))
        elif turn < 0.91:
            for _ in range(min(30, len(self.held))):
                self.acknowledge(self.random.randrange(len(self.held)),
                                 self.random.choices(list(KINDS), (8, 1, 2))[0])
        elif turn < 0.93:
            self.states.refused = {self.random.choice(
                ("summary", "read", "initialize", "write"))} - self.states.refused
        elif turn < 0.96:
            self.now_ms += self.random.randrange(1, 1500)
            self.runner.run(self.expire())
        else:
            if self.is_unclean and self.random.random() < 0.6:
                self.lose()
            self.elect(self.random.randrange(REPLICAS))

    async def expire(self):
        if self.share is not None:
            self.share.expire()
            await asyncio.sleep(0)

    def drain(self):
        """Deliver available records to members that accept everything."""
        self.states.refused.clear()
        for _ in range(DRAIN_ROUNDS_MAX):
            for _ in range(3):
                for index in range(REPLICAS):
                    self.replicate(index)
            self.now_ms += LIMITS.lock_ms + 1
            self.served()
            self.runner.run(self.expire())
            while self.acquire(500):
                while self.held:
                    self.acknowledge(0, ACCEPTED)

    def run(self):
        for _ in range(STEPS):
            self.step()
        self.drain()
        return self.history.faults()


def faults(path, seeds, is_unclean=False):
    """Return seed -> faults, for the seeds with faults."""
    found = {}
    with asyncio.Runner() as runner:
        for seed in seeds:
            rows = World(path, seed, runner, is_unclean).run()
            if rows:
                found[seed] = rows[:3]
    return found


@pytest.mark.parametrize("is_unclean", [False, True])
def test_every_written_record_is_settled_or_available_through_failovers(tmp_path, is_unclean):
    assert faults(tmp_path, range(SEEDS), is_unclean) == {}


def test_the_checker_finds_a_wrong_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(share_partition, "BOUND_HIGH_WATERMARK", BOUND_END)
    assert faults(tmp_path, range(SEEDS))


def test_the_checker_finds_states_that_outlive_their_records(tmp_path, monkeypatch):
    async def keeps(partition):
        return FINE, None

    monkeypatch.setattr(SharePartition, "_reset_truncated", keeps)
    assert faults(tmp_path, range(SEEDS), is_unclean=True)


def history(*events):
    made = History(LIMITS.deliveries_max)
    for name, *arguments in events:
        getattr(made, name)(*arguments)
    return made.faults()


AT = Record(0, 7)


@pytest.mark.parametrize(("events", "count"), [
    ([("delivered", Delivery(AT, b"v", 1)), ("acknowledged", b"v", ACCEPTED)], 0),
    ([("delivered", Delivery(AT, b"v", 1)), ("acknowledged", b"v", REJECTED)], 0),
    ([("delivered", Delivery(AT, b"v", LIMITS.deliveries_max))], 0),
    ([("delivered", Delivery(AT, b"v", 1)), ("refused", b"v", ACCEPTED, "closed", False)], 0),
    ([("lost", b"v")], 0),
    ([], 1),
    ([("delivered", Delivery(AT, b"v", 1)), ("acknowledged", b"v", RELEASED)], 1),
    ([("delivered", Delivery(AT, b"v", 1)), ("refused", b"v", ACCEPTED, "moved", True)], 1),
    ([("delivered", Delivery(AT, b"v", 1)), ("acknowledged", b"v", ACCEPTED),
      ("delivered", Delivery(AT, b"v", 2))], 1),
    ([("delivered", Delivery(AT, b"v", LIMITS.deliveries_max + 1))], 1),
    ([("delivered", Delivery(Record(0, 8), b"v", 1)), ("acknowledged", b"v", ACCEPTED)], 1),
    ([("acknowledged", b"v", ACCEPTED), ("delivered", Delivery(AT, b"other", 1))], 1),
])
def test_the_checker_judges_single_histories(events, count):
    found = history(("sent", b"v"), ("written", b"v", AT), *events)
    assert len(found) == count, found
