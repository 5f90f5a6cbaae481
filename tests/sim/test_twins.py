"""The simulation's model logs return the same results as native logs."""

import time
from types import SimpleNamespace

import pytest

from pylog._native.log.log import Log, LogDir, LogError
from pylog._native.records import batch
from tests.sim.logs import Directory, Files, ModelLog, Record

NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
SELF, OTHERS = 1, (2, 3, 4)
STEPS = 150


class Unseen:
    """A watcher that ignores all events."""

    def __getattr__(self, name):
        return lambda *arguments: None


class Pair:
    """A native log and its model, which receive the same calls."""

    def __init__(self, directory, number, random):
        self.random = random
        min_isr = random.choice((1, 2))
        self.native = Log.open(directory, "t", number, TOPIC_ID, {
            "min.insync.replicas": min_isr, "replica.lag.time.max.ms": 3_600_000}, now_ms=NOW)
        self.model = ModelLog(Files(), ("t", number), Unseen(), self.now_ns, SimpleNamespace(
            lag_ns=3_600_000_000_000, min_isr=min_isr, flush_first=False),
            Directory(SimpleNamespace(is_full=False)))
        self.epoch = self.partition_epoch = 0

    @staticmethod
    def now_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def both(self, name, *arguments, **named):
        """Call both and compare the results."""
        found = []
        for log in (self.native, self.model):
            try:
                found.append(getattr(log, name)(*arguments, **named))
            except LogError as error:
                found.append(("refused", error.code))
        assert found[0] == found[1], (name, arguments, found)

    def step(self):
        choose = self.random
        kind = choose.choice(("append", "append", "fetch", "fetch", "fetch", "name", "lead",
                              "follow", "copy", "cut", "advance"))
        getattr(self, f"_{kind}")(choose)

    def _append(self, choose):
        if self.native.is_leader:
            for _ in range(choose.randint(1, 3)):
                self.native.append(batch.build([(None, b"x", NOW, [])]), NOW)
                self.model.produce((-1, 0))

    def _copy(self, choose):
        if self.native.is_leader or not self.native.leader_epoch >= 0:
            return
        epoch = choose.randint(max(self.native.last_epoch, 0), max(self.epoch, 0))
        if epoch < self.native.last_epoch or epoch > self.epoch:
            return
        self.native.append_as_follower(batch.build(
            [(None, b"x", NOW, [])], base_offset=self.native.end_offset, leader_epoch=epoch), NOW)
        self.model.append_as_follower([Record(epoch, (-1, 0))])

    def _fetch(self, choose):
        self.both("follower_at", choose.choice((*OTHERS, 9)), choose.choice((5, 6, 6, 7, -1)),
                  choose.randint(0, self.native.end_offset + 1), 0, self.now_ns())

    def _name(self, choose):
        self.partition_epoch += choose.choice((0, 1, 1, -1))
        rows = [(id_, choose.choice((6, 6, 7)), in_isr, in_isr or choose.random() < 0.3)
                for id_ in choose.sample(OTHERS, choose.randint(1, 3))
                for in_isr in [choose.random() < 0.6]]
        self.both("set_replicas", self.partition_epoch, SELF, rows,
                  1 + sum(row[2] for row in rows),
                  ineligible=[id_ for id_ in OTHERS if choose.random() < 0.2])

    def _lead(self, choose):
        self.epoch += choose.randint(0, 1)
        if self.epoch >= self.native.last_epoch:
            self.both("become_leader", self.epoch, choose.randint(1, 3), replicated=True)

    def _follow(self, choose):
        self.epoch += 1
        self.both("become_follower", self.epoch)

    def _cut(self, choose):
        follows = not self.native.is_leader and self.native.leader_epoch == self.epoch
        if follows and choose.random() < 0.3:
            self.native.truncate(at := choose.randint(0, self.native.end_offset), self.epoch)
            self.model.truncate(at, self.epoch)

    def _advance(self, choose):
        if not self.native.is_leader:
            self.both("advance_high_watermark", choose.randint(0, self.native.end_offset))

    def compare(self):
        for name in ("end_offset", "high_watermark", "is_leader", "leader_epoch"):
            assert getattr(self.native, name) == getattr(self.model, name), name
        if self.native.is_leader:
            assert self.native.in_sync_count == self.model.in_sync_count
        for epoch in range(-1, self.epoch + 2):
            self.both("end_for_epoch", epoch)
        for offset in range(self.native.end_offset):
            assert self.native.epoch_of(offset) == self.model.epoch_of(offset), offset
        rows = [[row[:4] for row in log.followers()] for log in (self.native, self.model)]
        assert sorted(rows[0]) == sorted(rows[1])


@pytest.mark.parametrize("number", range(12))
def test_model_log_matches_the_native_log(tmp_path, random_source, number):
    pair = Pair(LogDir(tmp_path, 2), number, random_source)
    for _ in range(STEPS):
        pair.step()
        pair.compare()
