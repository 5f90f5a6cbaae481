"""The group coordinator at work: the state machines of the partitions that this broker leads.

Owns: one Shard per partition of `__consumer_offsets`, the timer, the threads that flush.
Called by: broker (start, stop, topic_deleted), api.groups and api.offsets_committed, on the event
  loop.
Invariants: (1) a group's requests go to one shard; (2) a shard answers nothing but 14 before it is
  loaded;
  (3) the records of a step are written before its replies are queued.
Source: Kafka's group coordinator. The topic is created on first use; its replication factor is
  offsets.topic.replication.factor, but at most the number of live brokers: one broker alone can
  serve groups.
"""

import asyncio
import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from pylog._native.batch import BatchError
from pylog._native.flushes import FlushWaits
from pylog._native.log import LogError
from pylog.coordinator import groups, offsets, store
from pylog.coordinator.kept import NO_ID, NOTHING, Kept
from pylog.metadata.image import NO_LEADER
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode, ProtocolError

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


class Shard:
    """One partition: its groups and its log. `ready` once it is loaded."""

    def __init__(self, index: int, machine, journal, kept):
        self.index = index
        self.groups = machine
        self.journal = journal
        self.kept = kept
        self.ready = False


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
        shards = [shard for shard in self._shards if shard is not None and shard.ready]
        self._close_shards()
        for shard in shards:
            await self._keep_shard(shard)
        if self._threads is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def _spawn(self, coroutine) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_shards(self) -> None:
        for shard in self._shards:
            if shard is not None:
                for token in shard.groups.open_tokens():
                    token.refuse(ErrorCode.NOT_COORDINATOR)
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
            self._journals[slot].woken()

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
            self._shards = [self._shard(index) for index in range(len(topic.partitions))]
            self._journals = [None if shard is None else shard.journal for shard in self._shards]
            self._spawn(self._load([shard for shard in self._shards if shard is not None]))

    def _shard(self, index: int) -> Shard | None:
        partition_log = self._broker.logs.get(TOPIC, index)
        if partition_log is None or not partition_log.is_leader:
            return None
        kept, settings = Kept(self._state, self._topic_id, index), self._broker.settings
        machine = groups.Groups(
            self._limits, self._clock, lambda: str(uuid.uuid4()),
            lambda group_id: self._cold(machine, kept.find(group_id)), kept.names)
        return Shard(index, machine, store.Journal(
            partition_log, self._broker.now_ms, self._waits, index,
            settings["offsets.topic.compression.codec"],
            settings["offsets.commit.timeout.ms"] / 1000), kept)

    def _cold(self, machine, group):
        """A group from state.lmdb, without the offsets of topics that were deleted meanwhile."""
        if group is not None:
            topics = self._broker.image.topics
            for (topic, partition), entry in list(group.offsets.items()):
                if entry.topic_id != NO_ID and (
                        topic not in topics or topics[topic].id != entry.topic_id):
                    offsets.forget(machine, group, topic, partition)
        return group

    async def _load(self, shards) -> None:
        loop = asyncio.get_running_loop()
        for shard in shards:
            try:
                offset = _kept_until(shard)
                if offset < shard.journal.log.end_offset:
                    await loop.run_in_executor(None, self._replay, shard, offset)
            except (LogError, BatchError, ProtocolError) as error:
                shard.journal.failed = True
                log.error("groups could not be loaded", extra={
                    "partition": shard.index, "reason": str(error)})
                continue
            shard.groups.loaded()
            shard.ready = True
            self.settle(shard)

    def _replay(self, shard: Shard, offset: int) -> None:
        """Reads the rest of a log into its machine; on a worker thread, before it is ready."""
        for key, value in store.replay(shard.journal.log, offset):
            shard.groups.replay(key, value)
        for group in list(shard.groups.groups.values()):
            self._cold(shard.groups, group)

    # ---- requests -------------------------------------------------------------------------------

    def shard_of(self, group_id: str):
        """(Shard, NONE) of a group, or (None, the error to answer)."""
        topic = self._broker.image.topics.get(TOPIC)
        if topic is None or topic.id != self._topic_id:
            self._follow_topic()
        if not self._shards:
            return None, ErrorCode.NOT_COORDINATOR
        shard = self._shards[partition_of(group_id, len(self._shards))]
        if shard is None or shard.journal.failed or shard.journal.log.failed:
            return None, ErrorCode.NOT_COORDINATOR
        if not shard.ready:
            return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return shard, ErrorCode.NONE

    def has_leader(self, group_id: str) -> bool:
        """Whether some broker leads the partition of the offsets topic that has the group's."""
        topic = self._broker.image.topics.get(TOPIC)
        return topic is not None and \
            topic.partitions[partition_of(group_id, len(topic.partitions))].leader != NO_LEADER

    def shards(self):
        """(loaded shards, whether there are others that are still loading)."""
        self._follow_topic()
        mine = [shard for shard in self._shards if shard is not None and not shard.journal.failed]
        return [shard for shard in mine if shard.ready], any(not shard.ready for shard in mine)

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
            if shard is not None and shard.ready and not shard.journal.failed:
                shard.groups.tick()
                self.settle(shard)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._settings["offsets.retention.check.interval.ms"] / 1000)
            await self.expire()

    async def expire(self) -> None:
        """What nobody uses any more goes; every offsets.retention.check.interval.ms."""
        for shard in self.shards()[0]:
            machine = shard.groups
            every = [*machine.groups, *[name for name, _ in machine.elsewhere()]]
            for first in range(0, len(every), EXPIRY_STEP):
                for group_id in every[first:first + EXPIRY_STEP]:
                    _expire_group(machine, group_id)
                self.settle(shard)
                await asyncio.sleep(0)

    async def _keep(self) -> None:
        """Brings state.lmdb up to date now and then, so that a start has little to replay."""
        seconds = 0
        while True:
            await asyncio.sleep(1)
            seconds = (seconds + 1) % KEEP_SECONDS
            for shard in self._shards:
                if shard is not None and shard.ready and (
                        not seconds or shard.journal.written >= KEEP_RECORDS):
                    await self._keep_shard(shard)

    async def _keep_shard(self, shard: Shard) -> None:
        machine, journal = shard.groups, shard.journal
        self.settle(shard)
        journal.append_now()
        if journal.failed or not machine.changed:
            return
        changed, machine.changed = machine.changed, set()
        journal.written = 0
        offset = journal.log.end_offset - 1
        applied = offset, journal.log.epoch_of(offset)
        topics_of = {}
        for group_id, topic in changed:
            topics_of.setdefault(group_id, set()).add(topic)
        rows = []
        try:
            for group_id, topics in topics_of.items():
                rows += shard.kept.rows(machine, group_id, topics)
                if len(rows) >= KEEP_ROWS:
                    await self._write(shard, rows, None)
                    rows = []
            await self._write(shard, rows, applied)
        except LogError as error:
            journal.fail(error)
            return
        # What was dropped since its row was made is still kept there.
        machine.gone -= topics_of.keys() - {group_id for group_id, _ in machine.changed}

    async def _write(self, shard: Shard, rows: list, applied) -> None:
        def write():
            # The map never tells of what a loss of power could take out of the log.
            shard.journal.log.flush()
            shard.kept.write(rows, applied)
        await asyncio.get_running_loop().run_in_executor(self._threads, write)

    def topic_deleted(self, name: str) -> None:
        """Forgets what was committed for a topic that is no more."""
        if name == TOPIC:
            self._follow_topic()
            return
        for shard in self.shards()[0]:
            for group in list(shard.groups.groups.values()):
                offsets.forget_topic(shard.groups, group, name)
            self.settle(shard)


def _kept_until(shard: Shard) -> int:
    """Takes the groups with members from state.lmdb. Returns the first offset to be replayed."""
    partition_log, kept = shard.journal.log, shard.kept
    offset, epoch = kept.applied()
    if (offset, epoch) == NOTHING or offset >= partition_log.end_offset \
            or partition_log.epoch_of(offset) != epoch:
        kept.clear()
        return partition_log.start_offset
    for group in kept.with_members():
        shard.groups.groups[group.id] = group
    return offset + 1


def _expire_group(machine, group_id: str) -> None:
    """Expires what is due; a group that was only looked at does not stay in memory."""
    was_here = group_id in machine.groups
    group = machine.find(group_id)
    if group is not None and not offsets.expire(machine, group) and not was_here:
        machine.groups.pop(group_id, None)
