"""The group coordinator at work: the state machines of the partitions that this broker leads.

Owns: one Shard per partition of `__consumer_offsets`, the timer, the threads that flush.
Called by: broker (start, stop, topic_deleted), api.groups and api.offsets_committed, on the event
  loop.
Invariants: (1) a group's requests go to one shard; (2) a shard answers nothing but 14 before it is
  loaded; (3) the records of a step are written before its replies are queued; (4) what goes wrong
  in one shard costs the others nothing, and that one a reload at most.
Source: Kafka's group coordinator. The topic is created on first use; its replication factor is
  offsets.topic.replication.factor, but at most the number of live brokers: one broker alone can
  serve groups.
"""

import asyncio
import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from pylog._native.flushes import FlushWaits
from pylog._native.log import LogError
from pylog.coordinator import groups, offsets
from pylog.coordinator.journal import Journal, replay
from pylog.coordinator.shard import Shard
from pylog.coordinator.snapshot import NO_ID, NOTHING, ShardSnapshot
from pylog.metadata.image import NO_LEADER
from pylog.metadata.store import StoreError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

TOPIC = "__consumer_offsets"
FLUSH_THREADS = 4
GROUPS_HASHED_MAX = 16_384
CREATE_TIMEOUT_MS = 30_000
EXPIRY_STEP = 100      # Groups looked at in one go.
KEEP_SECONDS = 30      # How often what changed goes to state.lmdb,
KEEP_RECORDS = 50_000  # and after how many records of one partition, looked at once a second.
KEEP_ROWS = 2000       # In one transaction.

log = logging.getLogger("pylog.coordinator")


def java_hash(text: str) -> int:
    """String.hashCode of Java: over UTF-16 units, as a signed 32-bit integer."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(GROUPS_HASHED_MAX)
def partition_of(key: str, count: int) -> int:
    """The partition of an internal topic that keeps `key`."""
    value = java_hash(key)
    return (0 if value == -2**31 else abs(value)) % count


class Pending:
    """A request that is answered later. refusal: error code -> message; shape: what to do to it.

    Whoever waits is called at once when the answer comes: a future would cost a turn of the loop.
    """

    __slots__ = ("_message", "_refusal", "_shape", "_then", "is_answered")

    def __init__(self, refusal, shape=None):
        self._refusal = refusal
        self._shape = shape
        self._then = self._message = None
        self.is_answered = False

    def answer(self, message) -> None:
        if self.is_answered:
            return
        self.is_answered = True
        self._message = message if self._shape is None else self._shape(message)
        if self._then is not None:
            self._then(self._message)

    def refuse(self, error: int) -> None:
        self.answer(self._refusal(error))

    @property
    def message(self):
        assert self.is_answered
        return self._message

    def then(self, call) -> None:
        """Calls call(message), now or when there is one. For one caller."""
        assert self._then is None
        if self.is_answered:
            call(self._message)
        else:
            self._then = call

    def __await__(self):
        if not self.is_answered:
            done = asyncio.get_running_loop().create_future()
            self.then(lambda message: done.done() or done.set_result(message))
            yield from done
        return self._message


class Clock:
    """What the state machines see of time."""

    def __init__(self, wall_ms):
        self.wall_ms = wall_ms
        self._time = asyncio.get_running_loop().time

    def now_ms(self) -> int:
        return int(self._time() * 1000)


class GroupCoordinator:
    """broker: gives settings, image, logs, controller, now_ms and node_id."""

    def __init__(self, broker):
        self._broker = broker
        self._settings = broker.settings
        self._limits = groups.limits_from(broker.settings)
        self._state = None
        self._topic_id = None
        self._shards = []
        self._journals = []      # By slot of `_waits`; they end after their shards.
        self._waits = None
        self._tasks = set()
        self._threads = None
        self._clock = None
        self._timer = None
        self._timer_ms = None
        self._creating = None
        self._loading = asyncio.Lock()   # One shard after the other.
        self._stopped = False

    # ---- start and stop -------------------------------------------------------------------------

    def start(self, state) -> None:
        """Begins to load what there is; returns at once. On the event loop.

        state: the metadata.store.Store for what is derived from the logs.
        """
        self._state = state
        self._clock = Clock(self._broker.now_ms)
        self._threads = ThreadPoolExecutor(FLUSH_THREADS, "offsets")
        self._follow_topic()
        self._spawn(self._expire())
        self._spawn(self._keep())

    async def stop(self) -> None:
        """Answers who waits for others, and takes no more requests."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        shards, self._shards = [shard for shard in self._shards if shard is not None], []
        for shard in shards:
            for token in shard.groups.open_tokens():
                token.refuse(ErrorCode.NOT_COORDINATOR)
        for shard in shards:
            if shard.ready:
                await self._keep_safely(shard)
        if self._threads is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def _spawn(self, coroutine) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_shards(self) -> None:
        for shard in self._shards:
            if shard is not None:
                shard.close()
        self._shards = []

    def _watch_flushes(self, count: int) -> None:
        """Lets `count` journals learn from the log directories' group commits."""
        loop = asyncio.get_running_loop()
        if self._waits is not None:
            loop.remove_reader(self._waits.fileno())
        if self._settings["log.flush.acks.all.enable"]:
            self._waits = FlushWaits(count)
            loop.add_reader(self._waits.fileno(), self._woken)

    def _woken(self) -> None:
        """The disk has caught up with some journals, or is lost."""
        for slot in self._waits.take():
            journal = self._journals[slot]
            try:
                journal.woken()
            except Exception as error:
                # Keeps (4).
                journal.fail(error)

    # ---- the topic ------------------------------------------------------------------------------

    async def ensure_topic(self) -> int:
        """Creates the internal topic unless it is there. Returns an error code."""
        if TOPIC not in self._broker.image.topics or self._creating is not None:
            if self._creating is None:
                self._creating = asyncio.ensure_future(self._create_topic())
                self._creating.add_done_callback(self._created)
            if not await asyncio.shield(self._creating):
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._follow_topic()
        return ErrorCode.NONE

    def _created(self, _) -> None:
        self._creating = None

    async def _create_topic(self) -> bool:
        settings = self._settings
        image = self._broker.image
        live = sum(1 for id_ in image.brokers if image.broker_is_active(id_))
        new = messages.CreateTopicsRequest
        configs = {"cleanup.policy": "compact", "compression.type": "producer",
                   "segment.bytes": str(settings["offsets.topic.segment.bytes"])}
        result, = await self._broker.controller.create_topics(new(
            timeout_ms=CREATE_TIMEOUT_MS, topics=[new.CreatableTopic(
                name=TOPIC, num_partitions=settings["offsets.topic.num.partitions"],
                replication_factor=min(settings["offsets.topic.replication.factor"], live),
                configs=[new.CreatableTopicConfig(name=name, value=value)
                         for name, value in configs.items()])]))
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            log.error("the offsets topic could not be created", extra={"reason": result.message})
            return False
        return True

    def _follow_topic(self) -> None:
        """Makes the shards those of the topic as it is now."""
        topic = self._broker.image.topics.get(TOPIC)
        topic_id = None if topic is None else topic.id
        if topic_id == self._topic_id or self._stopped or self._creating is not None:
            return
        self._close_shards()
        self._topic_id = topic_id
        if topic is not None:
            self._watch_flushes(len(topic.partitions))
            self._shards = [None] * len(topic.partitions)
            self._journals = [None] * len(topic.partitions)
            for index in range(len(topic.partitions)):
                self._open_shard(index)

    def _open_shard(self, index: int) -> Shard | None:
        """Begins to serve a partition; None when this broker has no log of it."""
        partition_log = self._broker.logs.get(TOPIC, index)
        if partition_log is None or not partition_log.is_leader:
            return None
        kept, settings = ShardSnapshot(self._state, self._topic_id, index), self._broker.settings

        def machine():
            def find(group_id: str):
                group = kept.find(group_id)
                # What a load takes out gets its records at its end: amid the replay they would
                # come behind commits that are in the log already.
                return group if made.is_loading else self._cold(made, group)

            made = groups.Groups(
                self._limits, self._clock, lambda: str(uuid.uuid4()), find, kept.names)
            return made

        journal = Journal(
            partition_log, self._broker.now_ms, self._waits, index,
            settings["offsets.topic.compression.codec"],
            settings["offsets.commit.timeout.ms"] / 1000)
        shard = self._shards[index] = Shard(index, machine, journal, kept)
        self._journals[index] = journal
        self._spawn(self._run(shard))
        return shard

    def _cold(self, machine, group):
        """A group from state.lmdb, without the offsets of topics that were deleted meanwhile."""
        if group is not None:
            topics = self._broker.image.topics
            for (topic, partition), entry in list(group.offsets.items()):
                if entry.topic_id != NO_ID and (
                        topic not in topics or topics[topic].id != entry.topic_id):
                    offsets.forget(machine, group, topic, partition)
        return group

    async def _run(self, shard: Shard) -> None:
        """Loads a shard, and loads it again each time that its memory is ahead of its log."""
        while True:
            async with self._loading:
                if not shard.closed:
                    await self._load(shard)
            if shard.ready:
                await shard.journal.broken.wait()
            if shard.closed:
                return
            shard.unload()
            if shard.journal.log.failed:
                return   # Only a start finds the disk well again.
            await asyncio.sleep(shard.next_pause_s())

    async def _load(self, shard: Shard) -> None:
        image = self._broker.image
        machine = shard.empty_machine()
        try:
            async with shard.keeping:
                offset = _kept_until(shard, machine)
                if offset < shard.journal.log.end_offset:
                    await asyncio.get_running_loop().run_in_executor(
                        None, self._replay, shard, machine, offset)
            if shard.closed:
                return
            if self._broker.image is not image:
                self._forget_deleted(machine)
            machine.loaded()
        except Exception as error:
            # Keeps (4): what one partition cannot be read for concerns no other.
            shard.unreadable()
            log.error("groups could not be loaded", extra={
                "partition": shard.index, "reason": str(error) or type(error).__name__})
            return
        shard.loaded(machine)
        self.settle(shard)

    def _replay(self, shard: Shard, machine, offset: int) -> None:
        """Reads the rest of a log into a machine; on a worker thread, before it is ready."""
        partition_log = shard.journal.log
        if self._waits is not None and partition_log.flushed_offset < partition_log.end_offset:
            # What is told of from now on must outlive a loss of power.
            partition_log.flush()
        for key, value in replay(partition_log, offset):
            machine.replay(key, value)
        self._forget_deleted(machine)

    def _forget_deleted(self, machine) -> None:
        """Takes out what was committed for topics that were deleted."""
        for group in list(machine.groups.values()):
            self._cold(machine, group)

    # ---- requests -------------------------------------------------------------------------------

    def shard_of(self, group_id: str):
        """(Shard, NONE) of a group, or (None, the error to answer)."""
        topic = self._broker.image.topics.get(TOPIC)
        if topic is None or topic.id != self._topic_id:
            self._follow_topic()
        if not self._shards:
            return None, ErrorCode.NOT_COORDINATOR
        index = partition_of(group_id, len(self._shards))
        # A partition that found no room when it was made may have been opened since.
        shard = self._shards[index] or self._open_shard(index)
        error = ErrorCode.NOT_COORDINATOR if shard is None else shard.error
        return (shard, error) if error == ErrorCode.NONE else (None, error)

    def has_leader(self, group_id: str) -> bool:
        """Whether some broker leads the partition of the offsets topic that has the group's."""
        topic = self._broker.image.topics.get(TOPIC)
        return topic is not None and \
            topic.partitions[partition_of(group_id, len(topic.partitions))].leader != NO_LEADER

    def shards(self):
        """(loaded shards, whether there are others that are still loading)."""
        self._follow_topic()
        told = [(shard, shard.error) for shard in self._shards if shard is not None]
        return ([shard for shard, error in told if error == ErrorCode.NONE],
                any(error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS for _, error in told))

    def settle(self, shard: Shard) -> None:
        """Writes and sends what a step of a shard's machine left. Keeps (3)."""
        machine = shard.groups
        if machine.records:
            machine.events["record_written"] += len(machine.records)
            shard.journal.write(machine.records)
            machine.records = []
        if machine.replies:
            replies, machine.replies = machine.replies, []
            for token, message in replies:
                shard.journal.after(token, message)
        self._arm(machine.timers.next_ms())

    def settled(self, shard: Shard, pending: Pending, message):
        """settle(), then answers one request after it. Returns `pending`."""
        self.settle(shard)
        shard.journal.after(pending, message)
        return pending

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
            if shard is not None and shard.error == ErrorCode.NONE:
                self._step(shard, shard.groups.tick)

    def _step(self, shard: Shard, step, *arguments) -> None:
        """One step of a shard's machine that no request asked for. Keeps (4)."""
        try:
            step(*arguments)
            self.settle(shard)
        except Exception as error:
            # What it left half done is not written: the log tells what was.
            shard.journal.fail(error)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._settings["offsets.retention.check.interval.ms"] / 1000)
            await self.expire()

    async def expire(self) -> None:
        """What nobody uses any more goes; every offsets.retention.check.interval.ms."""
        for shard in self.shards()[0]:
            try:
                await self._expire_shard(shard)
            except Exception:
                # Keeps (4).
                log.exception("offsets of a partition could not be expired")

    async def _expire_shard(self, shard: Shard) -> None:
        machine = shard.groups
        every = [*machine.groups, *[name for name, _ in machine.elsewhere()]]
        for first in range(0, len(every), EXPIRY_STEP):
            if shard.groups is not machine or shard.error != ErrorCode.NONE:
                return   # It is loaded again: the next time.
            self._step(shard, _expire_groups, machine, every[first:first + EXPIRY_STEP])
            await asyncio.sleep(0)

    async def _keep(self) -> None:
        """Brings state.lmdb up to date now and then, so that a start has little to replay."""
        seconds = 0
        while True:
            await asyncio.sleep(1)
            seconds = (seconds + 1) % KEEP_SECONDS
            for shard in list(self._shards):
                if shard is None or not shard.ready:
                    continue
                if shard.journal.log.failed:
                    # Whoever waits for another member would wait for ever.
                    shard.journal.fail("the partition is lost")
                elif not seconds or shard.journal.written >= KEEP_RECORDS:
                    await self._keep_safely(shard)

    async def _keep_safely(self, shard: Shard) -> None:
        """_keep_shard(); what goes wrong costs the next start time, and nothing else."""
        try:
            async with shard.keeping:
                await self._keep_shard(shard)
        except Exception as error:
            # Keeps (4).
            if not isinstance(error, (StoreError, LogError)):
                log.exception("state.lmdb is behind")
            log.error("state.lmdb could not be brought up to date", extra={
                "partition": shard.index, "reason": str(error)})

    async def _keep_shard(self, shard: Shard) -> None:
        machine, journal = shard.groups, shard.journal
        self.settle(shard)
        journal.append_now()
        if journal.failed or not machine.changed:
            return
        changed, machine.changed = machine.changed, set()
        try:
            await self._keep_changed(shard, changed)
        except BaseException:
            # Also when it is cancelled: without its rows no later applied offset would be true.
            machine.changed |= changed
            raise

    async def _keep_changed(self, shard: Shard, changed: set) -> None:
        machine, journal = shard.groups, shard.journal
        journal.written = 0
        offset = journal.log.end_offset - 1
        applied = offset, journal.log.epoch_of(offset)
        topics_of = {}
        for group_id, topic in changed:
            topics_of.setdefault(group_id, set()).add(topic)
        rows = []
        for group_id, topics in topics_of.items():
            rows += shard.kept.rows(machine, group_id, topics)
            if len(rows) >= KEEP_ROWS:
                await self._write(shard, rows, None)
                rows = []
                # The map never tells of what the log did not take.
                journal.append_now()
                if journal.failed:
                    return
        await self._write(shard, rows, applied)
        # What was dropped since its row was made is still kept there.
        machine.gone -= topics_of.keys() - {group_id for group_id, _ in machine.changed}

    async def _write(self, shard: Shard, rows: list, applied) -> None:
        def write():
            # The map never tells of what a loss of power could take out of the log.
            shard.journal.log.flush()
            shard.kept.write(rows, applied)
        done = asyncio.get_running_loop().run_in_executor(self._threads, write)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            # What is written next must not be overtaken by this.
            await asyncio.wait([done])
            raise

    def topic_deleted(self, name: str) -> None:
        """Forgets what was committed for a topic that is no more."""
        if name == TOPIC:
            self._follow_topic()
            return
        for shard in self.shards()[0]:
            self._step(shard, _forget_topic, shard.groups, name)


def _kept_until(shard: Shard, machine) -> int:
    """Takes the groups with members from state.lmdb. Returns the first offset to be replayed."""
    partition_log, kept = shard.journal.log, shard.kept
    offset, epoch = kept.applied()
    if (offset, epoch) == NOTHING or offset >= partition_log.end_offset \
            or partition_log.epoch_of(offset) != epoch:
        kept.clear()
        return partition_log.start_offset
    for group in kept.with_members():
        machine.groups[group.id] = group
    return offset + 1


def _forget_topic(machine, name: str) -> None:
    for group in list(machine.groups.values()):
        offsets.forget_topic(machine, group, name)


def _expire_groups(machine, group_ids: list) -> None:
    for group_id in group_ids:
        _expire_group(machine, group_id)


def _expire_group(machine, group_id: str) -> None:
    """Expires what is due; a group that was only looked at does not stay in memory."""
    was_here = group_id in machine.groups
    group = machine.find(group_id)
    if group is not None and not offsets.expire(machine, group) and not was_here:
        machine.groups.pop(group_id, None)
