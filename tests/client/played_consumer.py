"""A consumer's core on a simulated cluster, for unit tests.

Owns: nothing.
Invariants: requests of the core are recorded in `asked`, in order; there is no broker and only a
  virtual clock.
"""

from types import SimpleNamespace

from pylog.client.config.settings import CONSUMER, Settings
from pylog.client.consumer import (
    commit_manager,
    list_offsets,
)
from pylog.client.consumer import (
    core as consumer_core,
)
from pylog.client.consumer import (
    offset_requests,
)
from pylog.client.consumer.core import Consuming
from pylog.client.consumer.offset_requests import Identity
from pylog.client.network.cluster_metadata import Metadata, Node, PartitionInfo, TopicInfo
from pylog.client.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

ONE, TWO, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def picture(epoch: int = 0, version: int = 1, topics=("t", "u"), partitions: int = 2,
            internal=()) -> Metadata:
    """Return metadata of topics that broker 1 leads, all in one leader epoch."""
    return Metadata(
        version=version, nodes={1: Node(1, "h", 1), 2: Node(2, "h", 2)}, topics={
            name: TopicInfo(name, name.encode() * 16, name in internal, 0, {
                number: PartitionInfo(name, number, 1, epoch, (1,), (1,), (), 0)
                for number in range(partitions)}) for name in topics},
        ids={name.encode() * 16: name for name in topics})


class Member:
    """A membership that records its calls."""

    def __init__(self, world, generation=3):
        self.world, self.generation, self.polled_s = world, generation, 0.0
        self.identity = Identity("g", "m", generation)
        self.has_pending_work, self.failures = False, []

    def owned(self):
        return list(self.world.core.subscription.states)

    def commit_refused(self, failure):
        self.failures.append(failure)

    def subscription_changed(self):
        self.world.asked.append("subscription changed")

    def metadata_changed(self):
        self.world.asked.append("metadata changed")

    async def run_pending_work(self):
        self.world.asked.append("attend")
        self.has_pending_work = False

    async def take(self, partitions):
        self.world.asked.append(("take", partitions))

    async def end(self):
        self.world.asked.append("end")

    async def stop(self):
        self.world.asked.append("stop")

    def raise_callback_failure(self):
        pass


class World:
    """refusals: errors of the next commits; committed, ends, begins: responses."""

    def __init__(self, clock, monkeypatch, **settings):
        self.clock, self.asked, self.notices, self.pokes = clock, [], 0, 0
        self.refusals, self.committed, self.ends = [], {}, {}
        self.before_reset = lambda states: None
        settings = {"bootstrap_servers": "x:1", "retry_backoff_ms": 100,
                    "retry_backoff_max_ms": 100, **settings}
        self.core = core = Consuming(Settings(CONSUMER, **settings), self._callback, self._notified)
        core.cluster.metadata = picture()
        for name in ("start", "close", "refresh"):
            setattr(core.cluster, name, self._noted(name))
        core.cluster.request_refresh = lambda: self.asked.append("request refresh")
        core.fetcher.poke = self._poked
        for module, name, work in (
                (offset_requests, "commit", self._commit),
                (offset_requests, "committed", self._committed),
                (list_offsets, "reset", self._reset), (list_offsets, "validate", self._validate),
                (list_offsets, "list_offsets", self._listed)):
            monkeypatch.setattr(module, name, work)

        self.replace = lambda name, work: monkeypatch.setattr(offset_requests, name, work)

    def joined(self, generation=3) -> Member:
        self.core.membership = Member(self, generation)
        return self.core.membership

    def standing(self, **at):
        """Assign partitions of `t` manually, p0=5 at offset 5, None for an unknown position.
        Returns their states.
        """
        made = self.core.subscription.assign(
            TopicPartition("t", int(name[1:])) for name in at)
        for state, offset in zip(made, at.values()):
            if offset is not None:
                state.move_to(offset)
        return made

    # Dependencies of the core.

    def _notified(self):
        self.notices += 1

    def _poked(self):
        self.pokes += 1

    async def _callback(self, function, partitions):
        function(partitions)

    def _noted(self, name):
        async def note():
            self.asked.append(name)
            return self.core.cluster.metadata
        return note

    async def _commit(self, cluster, who, offsets):
        self.asked.append(("commit", who, dict(offsets)))
        if self.refusals:
            failure = self.refusals.pop(0)
            if failure is not None:
                raise failure

    async def _committed(self, cluster, who, partitions, require_stable):
        self.asked.append(("committed", who, list(partitions), require_stable))
        return {tp: OffsetAndMetadata(offset, "", 4) for tp, offset in self.committed.items()}

    async def _reset(self, cluster, states, isolation):
        self.asked.append(("reset", [(state.tp, state.reset) for state in states], isolation))
        self.before_reset(states)
        for state in states:
            state.move_to(70)

    async def _validate(self, cluster, states, moves):
        self.asked.append(("validate", [state.tp for state in states]))
        for state in states:
            state.validate = -1

    async def _listed(self, cluster, times, isolation, timeout_s):
        self.asked.append(("list", dict(times), isolation, timeout_s))
        return {tp: OffsetAndTimestamp(self.ends[tp], -1) if tp in self.ends else None
                for tp in times}


def listener(calls, *names):
    """Return a listener whose callbacks of these names record their arguments."""
    return SimpleNamespace(**{
        f"on_partitions_{name}": lambda given, name=name: calls.append((name, given))
        for name in names})


def player(virtual_time, monkeypatch):
    """play(steps, **settings) runs steps(world) on an event loop with a virtual clock."""
    clock = virtual_time(consumer_core, commit_manager)

    def play(steps, **settings):
        async def main():
            return await steps(World(clock, monkeypatch, **settings))

        return clock.run(main())

    return play
