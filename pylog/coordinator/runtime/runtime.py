"""The coordinator runtime: state machines on the partitions of an internal topic, for any kind of
coordinator.

Owns: a Shard for each partition, the timer, loading and unloading, expiry, snapshots.
Invariants: all requests of a key go to one shard; a shard returns only COORDINATOR_LOAD_IN_PROGRESS
  (14) or NOT_COORDINATOR (16) before it is loaded and after it loses leadership; every response
  goes through the journal, so it waits until the step's records are durable; a failure in one shard
  does not affect the others, and costs that shard at most a reload; a failed step is not written,
  and the log decides what happened; leader epochs only increase, and older ones are ignored.
Source: Kafka's CoordinatorRuntime.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import partial
from typing import Any, Generic, NamedTuple

from pylog import supervisor
from pylog._native.log.flush_waits import FlushWaits
from pylog._native.log.log import LogError
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.internal_topic import InternalTopic, Node, TopicSpec, partition_of
from pylog.coordinator.runtime.journal import Journal, MissingOffsets, Token, replay
from pylog.coordinator.runtime.shard import M, Shard, Snapshot
from pylog.coordinator.runtime.snapshot_writer import Saver
from pylog.coordinator.runtime.timers import Clock
from pylog.coordinator.runtime.transactional_batches import UNKNOWN, Marker, TransactionalRecords
from pylog.metadata.image.image import NO_LEADER, Topic
from pylog.protocol.errors import Error, ErrorCode

SAVE_SECONDS = 30  # How often to write snapshots,
SAVE_RECORDS = 50_000  # and after how many records of one partition, checked once a second.
NOTHING = -1, -1

log = logging.getLogger("pylog.coordinator")


class Coordination(NamedTuple, Generic[M]):
    """What a coordinator provides to its runtime.

    open: (topic id, partition, clock) -> (function that creates an empty state machine, its
    snapshot or None). replay_batch: (state machine, transactional batch), like replay() of a
    record. prepare: the last step of a load, on a worker thread, and again on the event loop if the
    image changed in between. expire: (state machine) -> an iterator whose steps take a few ms each;
    runs every expiry_ms. write_timeout_s: a response that waits longer for the disk becomes
    COORDINATOR_NOT_AVAILABLE (15). changed: called with a state machine whose records are about to
    be written. ended: called with a state machine that is being unloaded.
    """

    topic: TopicSpec
    open: Callable[[bytes, int, Clock], tuple[Callable[[], M], Snapshot[M] | None]]
    replay_batch: Callable[[M, TransactionalRecords | Marker], object] = \
        lambda state_machine, written: None
    prepare: Callable[[M], object] = lambda state_machine: None
    expire: Callable[[M], Iterator[object]] = lambda state_machine: iter(())
    expiry_ms: int = 0
    codec: int = 0
    write_timeout_s: float = 5.0
    changed: Callable[[M], object] = lambda state_machine: None
    ended: Callable[[M], object] = lambda state_machine: None


class CoordinatorRuntime(Generic[M]):
    """Runs the shards of one internal topic. node: the broker, see internal_topic.Node."""

    def __init__(self, coordination: Coordination[M], node: Node):
        self.topic = InternalTopic(coordination.topic, node)
        self.records_written = 0
        self._coordination = coordination
        self._node = node
        self._topic_id: bytes | None = None
        self._shards: list[Shard[M] | None] = []
        self._journals: list[Journal | None] = []  # By slot of `_waits`.
        self._waits: FlushWaits | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._saver: Saver | None = None
        self._clock: Clock | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._loading = asyncio.Lock()  # Loads one shard at a time.
        self._stopped = False

    # ---- start and stop -------------------------------------------------------------------------

    def start(self) -> None:
        """Start loading the partitions that this broker leads; return immediately.

        Call on the event loop.
        """
        self._clock = Clock(self._node.now_ms)
        self._saver = Saver()
        topic = self.topic.current
        if topic is not None:
            self.topic_changed(topic)
        self._keep_running("coordinator snapshots", self._save)
        if self._coordination.expiry_ms:
            self._keep_running("coordinator expiry", self._expire)

    async def stop(self) -> None:
        """Reject waiting requests, accept no more, and write the last snapshots."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        shards = [shard for shard in self._shards if shard is not None]
        self._shards = []
        if self._saver is not None:
            for shard in shards:
                shard.refuse_open()
            for shard in shards:
                await self._saver.save(shard)
            await self._saver.close()

    def _keep_running(self, work: str, run: Callable[[], Awaitable[None]],
                      **details: object) -> None:
        task = asyncio.get_running_loop().create_task(supervisor.restarting(
            work, run, topic=self.topic.spec.name, **details))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _watch_flushes(self, count: int) -> None:
        """Create the flush waiters for `count` journals."""
        loop = asyncio.get_running_loop()
        if self._waits is not None:
            loop.remove_reader(self._waits.fileno())
        self._waits = FlushWaits(count)
        loop.add_reader(self._waits.fileno(), self._woken)

    def _woken(self) -> None:
        """Wake journals whose records were flushed and replicated, or whose logs failed."""
        assert self._waits is not None
        for slot in self._waits.take():
            journal = self._journals[slot]
            assert journal is not None, slot
            try:
                journal.woken()
            except Exception as error:
                # A failure in one shard does not affect the others.
                journal.fail(error)

    # ---- leadership -----------------------------------------------------------------------------

    def topic_changed(self, topic: Topic) -> None:
        """Apply the leaders and leader epochs of the topic in the current image."""
        assert topic.name == self.topic.spec.name, topic.name
        if self._stopped or self._clock is None:
            return
        if topic.id != self._topic_id:
            self.topic_deleted()
            self._topic_id = topic.id
            # The partition count stays fixed: another count would move keys to other partitions.
            self._watch_flushes(len(topic.partitions))
            self._shards = [None] * len(topic.partitions)
            self._journals = [None] * len(topic.partitions)
        for index, shard in enumerate(self._shards):
            state = topic.partitions[index]
            if state.leader == self._node.node_id:
                self._lead(index, state.leader_epoch)
            elif shard is not None and state.leader_epoch > shard.epoch:
                # Only a newer leader epoch ends the term.
                shard.resign(state.leader_epoch)

    def topic_deleted(self) -> None:
        """Stop serving all partitions: the topic was deleted."""
        shards, self._shards = self._shards, []
        self._topic_id = None
        for shard in shards:
            if shard is not None:
                shard.resign(shard.epoch)

    def _lead(self, index: int, epoch: int) -> Shard[M] | None:
        """Start a term and return its shard, or the current shard if `epoch` is not newer.

        Returns None while the partition's log is not open.
        """
        assert epoch >= 0, (index, epoch)
        shard = self._shards[index]
        if shard is not None and epoch <= shard.epoch:
            # Ignore older leader epochs.
            return shard
        partition_log = self._node.logs.get(self.topic.spec.name, index)
        if partition_log is None or not partition_log.is_leader \
                or partition_log.leader_epoch < epoch:
            if shard is not None and shard.leads:
                shard.resign(shard.epoch)
            return None
        if shard is None or shard.journal.log is not partition_log:
            shard = self._made(index, partition_log)
            if shard is None:
                return None
        shard.lead(epoch)
        self._keep_running("coordinator partition", partial(self._serve, shard, epoch),
                           partition=index)
        return shard

    def _made(self, index: int, partition_log: Any) -> Shard[M] | None:
        """Create a shard on a log; return None while an earlier journal's flush uses the slot."""
        before, old = self._shards[index], self._journals[index]
        if before is not None:
            before.resign(before.epoch)
        if old is not None and not old.is_idle:
            return None
        assert self._clock is not None and self._topic_id is not None, index
        make, snapshot = self._coordination.open(self._topic_id, index, self._clock)
        journal = self._journals[index] = Journal(
            partition_log, self._node.now_ms, self._waits, index, self._coordination.codec,
            self._coordination.write_timeout_s, self._node.defer)
        shard = self._shards[index] = Shard(
            index, make, journal, snapshot, self._coordination.ended)
        return shard

    def _opened(self, index: int) -> Shard[M] | None:
        """Retry a shard whose log could not be opened before: no space, or not recovered yet."""
        topic = self.topic.current
        if topic is None or topic.id != self._topic_id:
            return None
        state = topic.partitions[index]
        return self._lead(index, state.leader_epoch) if state.leader == self._node.node_id else None

    async def _serve(self, shard: Shard[M], epoch: int) -> None:
        """Load the shard for one term, and reload it whenever its memory is ahead of its log."""
        while shard.serves(epoch):
            async with self._loading:
                if shard.serves(epoch) and not shard.ready:
                    await self._load(shard, epoch)
            if shard.ready and shard.serves(epoch):
                await shard.journal.broken.wait()
            if not shard.serves(epoch):
                return
            shard.unload()
            if shard.journal.log.failed:
                return  # The disk failed: only a restart recovers it.
            await asyncio.sleep(shard.next_pause_s())

    async def _load(self, shard: Shard[M], epoch: int) -> None:
        image = self._node.image
        try:
            async with shard.saving:
                state_machine = await self._read(shard, epoch)
            if not shard.serves(epoch):
                return  # Another term has begun: drop this state machine.
            if self._node.image is not image:
                self._coordination.prepare(state_machine)
            state_machine.loaded()
        except Exception as error:
            # A partition that cannot be read does not affect the others.
            if shard.serves(epoch):
                shard.unreadable()
                log.error("a coordinator partition cannot be loaded", extra={
                    "topic": self.topic.spec.name, "partition": shard.index,
                    "reason": str(error) or type(error).__name__})
            return
        shard.loaded(state_machine, epoch)
        self._write(shard)

    async def _read(self, shard: Shard[M], epoch: int) -> M:
        """Return a state machine with the state that the log describes."""
        partition_log, snapshot = shard.journal.log, shard.snapshot
        state_machine = shard.empty_state_machine()
        if snapshot is not None and _is_of_log(snapshot, partition_log):
            snapshot.restore(state_machine)
            offset = snapshot.applied()[0] + 1
            try:
                await self._replay_on_thread(shard, state_machine, offset, epoch, contiguous=True)
                return state_machine
            except MissingOffsets as gap:
                log.info("the log was compacted after the snapshot: reading the whole log", extra={
                    "topic": self.topic.spec.name, "partition": shard.index, "reason": str(gap)})
                state_machine = shard.empty_state_machine()
        if snapshot is not None:
            snapshot.clear()
        await self._replay_on_thread(shard, state_machine, partition_log.start_offset, epoch)
        return state_machine

    async def _replay_on_thread(self, shard: Shard[M], state_machine: M, offset: int, epoch: int,
                                contiguous: bool = False) -> None:
        if shard.journal.log.start_offset < shard.journal.log.end_offset:
            await asyncio.get_running_loop().run_in_executor(
                None, self._replay, shard, state_machine, offset, epoch, contiguous)

    def _replay(self, shard: Shard[M], state_machine: M, offset: int, epoch: int,
                contiguous: bool) -> None:
        """Replay the rest of a log into an unpublished state machine. Runs on a worker thread."""
        partition_log = shard.journal.log
        if self._node.settings["log.flush.acks.all.enable"] and \
                partition_log.flushed_offset < partition_log.end_offset:
            # Replies from now on depend on these records, so they must survive a power loss.
            partition_log.flush()
        for written in replay(partition_log, offset, contiguous):
            if self._stopped or not shard.serves(epoch):
                return
            if isinstance(written, TransactionalRecords | Marker):
                self._coordination.replay_batch(state_machine, written)
            else:
                state_machine.replay(*written)
        self._coordination.prepare(state_machine)

    # ---- requests -------------------------------------------------------------------------------

    def run(self, key: str, pending: DeferredResponse, step: Callable[..., Any],
            *arguments: Any) -> DeferredResponse:
        """Run step(state_machine, *arguments) on the state machine of `key` and return `pending`.

        The step's result is sent to `pending` once its records are durable. If the step returns
        None, the state machine keeps `pending` and responds later.
        """
        shard, error = self._find(key)
        return self._run(shard, error, pending, step, arguments)

    def run_as_producer(self, index: int, pending: DeferredResponse, fault: Callable[..., Error],
                        producer_id: int, step: Callable[..., Any],
                        *arguments: Any) -> DeferredResponse:
        """Run a step that writes as a producer, on partition `index`; see run().

        fault: producer_of() result -> error that rejects the step, or NONE.
        """
        known, error = self.producer_at(index, producer_id)
        if error == ErrorCode.NONE:
            error = fault(known)
        if error != ErrorCode.NONE:
            pending.refuse(error)
            return pending
        return self._run(*self._at(index), pending, step, arguments)

    def producer_at(self, index: int,
                    producer_id: int) -> tuple[tuple[int, int, int, int], Error]:
        """Return (producer_of(), NONE), or (UNKNOWN, error) if the partition is not served."""
        shard, error = self._at(index) if index < len(self._shards) \
            else (None, ErrorCode.NOT_COORDINATOR)
        if shard is None:
            return UNKNOWN, error
        try:
            return shard.journal.producer(producer_id), ErrorCode.NONE
        except LogError as failure:
            return UNKNOWN, ErrorCode.of(failure.code)

    def _run(self, shard: Shard[M] | None, error: Error, pending: DeferredResponse,
             step: Callable[..., Any], arguments: tuple[Any, ...]) -> DeferredResponse:
        if shard is None:
            pending.refuse(error)
            return pending
        try:
            message = step(shard.state_machine, *arguments)
            # Only the journal may send a response.
            assert not pending.is_set, step
        except Exception as bug:
            self._fail(shard, pending, bug)
            return pending
        self._write(shard)
        if message is not None:
            shard.journal.after(pending, message)
        return pending

    def run_in_slices(self, key: str, pending: DeferredResponse,
                      steps: Callable[..., Generator[None, None, Any]],
                      *arguments: Any) -> DeferredResponse:
        """Run a step that takes long; see run().

        steps: a generator that yields every few ms and returns the response. Other steps run in
        between, so they must not touch its unfinished work.
        """
        shard, error = self._find(key)
        if shard is None:
            pending.refuse(error)
        else:
            shard.halfway += 1
            self._next_slice(shard, shard.state_machine, pending,
                             steps(shard.state_machine, *arguments))
        return pending

    def _next_slice(self, shard: Shard[M], state_machine: M, pending: DeferredResponse,
                    slices: Generator[None, None, Any]) -> None:
        if self._stopped or shard.state_machine is not state_machine \
                or shard.error != ErrorCode.NONE:
            # It was reloaded with the records written so far; the client retries the rest.
            slices.close()
            pending.refuse(ErrorCode.NOT_COORDINATOR)
            return
        try:
            next(slices)
        except StopIteration as end:
            shard.halfway -= 1
            self._write(shard)
            shard.journal.after(pending, end.value)
        except Exception as bug:
            self._fail(shard, pending, bug)
        else:
            self._write(shard)
            asyncio.get_running_loop().call_soon(
                self._next_slice, shard, state_machine, pending, slices)

    def query(self, key: str, step: Callable[..., Any], *arguments: Any) -> tuple[Any, Error]:
        """Return (step(state_machine, *arguments), NONE) immediately, or (None, error).

        The step may write only cleanup records.
        """
        shard, error = self._find(key)
        if shard is None:
            return None, error
        state_machine = shard.state_machine
        try:
            found = step(state_machine, *arguments)
            # A read has no records or responses that would have to wait for durability.
            assert len(state_machine.records) == state_machine.cleanups, step
            assert not state_machine.responses, step
        except Exception as bug:
            # Fail the shard: the failed step's leftovers must not be written with the next step.
            shard.journal.fail(bug)
            raise
        if state_machine.records:
            self._write(shard)
        return found, ErrorCode.NONE

    def _find(self, key: str) -> tuple[Shard[M] | None, Error]:
        """Return (shard of a key, NONE), or (None, error)."""
        if not self._shards:
            return None, ErrorCode.NOT_COORDINATOR
        return self._at(partition_of(key, len(self._shards)))

    def _at(self, index: int) -> tuple[Shard[M] | None, Error]:
        shard = self._shards[index]
        if shard is None or not shard.leads:
            shard = self._opened(index) or shard
        error = ErrorCode.NOT_COORDINATOR if shard is None else shard.error
        return (shard, error) if error == ErrorCode.NONE else (None, error)

    def leader_of(self, key: str) -> int:
        """Return the broker that leads the partition of `key`, or NO_LEADER."""
        topic = self.topic.current
        return NO_LEADER if topic is None else \
            topic.partitions[partition_of(key, len(topic.partitions))].leader

    def epoch_of(self, key: str) -> int:
        """Return the leader epoch under which this broker serves `key`, or -1 if it does not."""
        shard, _ = self._find(key)
        return -1 if shard is None else shard.epoch

    def shards(self) -> tuple[list[Shard[M]], bool]:
        """Return (loaded shards, True if other shards are still loading)."""
        found = [(shard, shard.error) for shard in self._shards if shard is not None]
        return ([shard for shard, error in found if error == ErrorCode.NONE],
                any(error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS for _, error in found))

    def _write(self, shard: Shard[M]) -> None:
        """Write the records and queue the responses that the last step left in the state machine.
        """
        state_machine = shard.state_machine
        if state_machine.records:
            self.records_written += len(state_machine.records)
            self._coordination.changed(state_machine)
            shard.journal.write(state_machine.records)
            state_machine.records = []
            state_machine.cleanups = 0
        if state_machine.responses:
            responses, state_machine.responses = state_machine.responses, []
            for token, message in responses:
                shard.journal.after(token, message)
        self._arm(state_machine.timers.next_ms())

    def _fail(self, shard: Shard[M], token: Token, bug: Exception) -> None:
        """Handle a failed request step: drop its records and the state machine."""
        shard.journal.fail(bug)
        token.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)

    # ---- time -----------------------------------------------------------------------------------

    def _arm(self, due_ms: int | None) -> None:
        if due_ms is None or self._timer_ms is not None and self._timer_ms <= due_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = asyncio.get_running_loop().call_at((due_ms + 1) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_ms = None
        for shard in self._shards:
            if shard is not None and shard.runs:
                self._step(shard, shard.state_machine.tick)

    def step_each(self, step: Callable[[M], object]) -> None:
        """Run an internal step on every loaded state machine. A failure affects only its shard."""
        for shard in self._shards:
            if shard is not None and shard.runs:
                self._step(shard, step, shard.state_machine)

    def _step(self, shard: Shard[M], step: Callable[..., Any], *arguments: Any) -> Any:
        """Run an internal step of a shard and return its result, or None if it failed."""
        try:
            found = step(*arguments)
        except Exception as error:
            # The failed step must not be written.
            shard.journal.fail(error)
            return None
        self._write(shard)
        return found

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._coordination.expiry_ms / 1000)
            await self.expire()

    async def expire(self) -> None:
        """Expire unused state of all loaded shards. Runs every expiry_ms."""
        for shard in self.shards()[0]:
            try:
                await self._expire_shard(shard)
            except Exception:
                # A failure in one shard does not affect the others.
                supervisor.report("coordinator expiry",
                                  "expired entries of a partition could not be removed",
                                  topic=self.topic.spec.name, partition=shard.index)

    async def _expire_shard(self, shard: Shard[M]) -> None:
        state_machine = shard.state_machine
        steps = self._coordination.expire(state_machine)
        # A reloaded state machine is expired in the next run.
        while shard.state_machine is state_machine and shard.error == ErrorCode.NONE \
                and self._step(shard, _advance, steps):
            await asyncio.sleep(0)

    # ---- snapshots ------------------------------------------------------------------------------

    async def _save(self) -> None:
        """Update the snapshots periodically, so that a load replays only a short tail."""
        seconds = 0
        while True:
            await asyncio.sleep(1)
            seconds = (seconds + 1) % SAVE_SECONDS
            for shard in list(self._shards):
                if shard is None or not shard.ready:
                    continue
                if shard.journal.log.failed:
                    # Fail now: requests that wait for other members would wait forever.
                    shard.journal.fail("the partition is lost")
                elif not seconds or shard.journal.written >= SAVE_RECORDS:
                    await self.save(shard)

    def save(self, shard: Shard[M]) -> Awaitable[None]:
        """Update the snapshot of one shard."""
        assert self._saver is not None
        return self._saver.save(shard)


def _is_of_log(snapshot: Snapshot[Any], partition_log: Any) -> bool:
    """Return True if the log has the last record that the snapshot reflects."""
    offset, epoch = snapshot.applied()
    return (offset, epoch) != NOTHING and offset < partition_log.end_offset \
        and bool(partition_log.epoch_of(offset) == epoch)


def _advance(steps: Iterator[object]) -> bool:
    """Return True if the iterator had another step."""
    for _ in steps:
        return True
    return False
