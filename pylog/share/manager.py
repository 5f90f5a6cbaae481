"""The share partitions of this broker: waiting fetches, lock timeouts, leadership changes.

Owns: the share partitions by group, topic and index; sessions; timers; waiting fetches.
Invariants: there is one share partition per group and partition, for the newest leader epoch and
  the current log; a waiting fetch is retried when records arrive, and at the latest after its wait
  time; without sessions, a group has no share partitions here except those that are archiving; no
  orphaned records: a member without an open session acquires nothing, and its records are released
  immediately when its session ends.
Source: KIP-932; Kafka's SharePartitionManager and DelayedShareFetch.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple

from pylog import supervisor
from pylog._native.log.flush_waits import FlushWaits
from pylog._native.log.log import LogError
from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.runtime.internal_topic import Node
from pylog.coordinator.share.partition_state import ShareKey
from pylog.metadata.image.image import Topic
from pylog.protocol.errors import Error, ErrorCode
from pylog.share.archiver import Archiving
from pylog.share.dead_letters import DeadLetters
from pylog.share.group_config import GroupSettings
from pylog.share.in_flight import Wanted
from pylog.share.metrics import ShareMetrics
from pylog.share.persister import Persister
from pylog.share.sessions import TopicIdPartition, Session, Sessions
from pylog.share.share_partition import NOTHING, Acknowledgements, Acquired, SharePartition

SLOTS = 512  # Number of logs that are watched at a time;
POLL_SECONDS = 0.1  # the others are polled.
WAIT_MS_MAX = 600_000


class Fetch(NamedTuple):
    """The parameters of a member's fetch."""

    session: Session
    wanted: Wanted
    wait_ms_max: int
    bytes_min: int
    bytes_max: int


class Row(NamedTuple):
    """The result for a partition."""

    error: Error
    text: str | None = None
    acquired: Acquired = NOTHING


class SharePartitions:
    """Serves share fetches and acknowledgements. node: see internal_topic.Node."""

    def __init__(self, node: Node, brokers: Brokers, persister: Persister,
                 settings: GroupSettings, metrics: ShareMetrics):
        self.settings = settings
        self._metrics = metrics
        self.letters = DeadLetters(node, brokers, settings)
        self.sessions = Sessions(node.settings["group.share.max.share.sessions"])
        self._node = node
        self._persister = persister
        self._partitions: dict[ShareKey, SharePartition] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[ShareKey, asyncio.TimerHandle] = {}
        self._waiting: dict[ShareKey, dict[asyncio.Event, None]] = {}
        self._waits: FlushWaits | None = None
        self._free: list[int] = []
        self._watched: dict[int, SharePartition] = {}      # By slot.
        self._archiving = Archiving(self.letters, self._written)
        self._left: set[ShareKey] = set()  # Kept only for archiving.

    async def stop(self) -> None:
        """Fence all share partitions, so that waiting fetches return nothing."""
        await self._archiving.stop()
        for partition in list(self._partitions.values()):
            partition.fence(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for handle in self._timers.values():
            handle.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._waits is not None:
            asyncio.get_running_loop().remove_reader(self._waits.fileno())
            self._waits = None

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(
            supervisor.reporting("share partitions", coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- share partitions -----------------------------------------------------------------------

    def every(self) -> list[SharePartition]:
        """Return all share partitions. Callable on any thread."""
        return list(self._partitions.values())

    def find(self, group_id: str, topic_partition: TopicIdPartition) -> SharePartition | None:
        return self._partitions.get(ShareKey(group_id, *topic_partition))

    def _get(self, group_id: str,
             topic_partition: TopicIdPartition) -> tuple[SharePartition | None, Error]:
        """Return (share partition, possibly still loading, NONE), or (None, error)."""
        key = ShareKey(group_id, *topic_partition)
        if key in self._left:
            # The group's offsets may have been altered since: load the state again.
            self._partitions[key].fence(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        found = self._partitions.get(key)
        if found is not None:
            return found, ErrorCode.NONE
        topic = self._node.image.topics_by_id.get(topic_partition[0])
        if topic is None:
            return None, ErrorCode.UNKNOWN_TOPIC_ID
        if not 0 <= topic_partition[1] < len(topic.partitions):
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        state = topic.partitions[topic_partition[1]]
        partition_log = self._node.logs.get(topic.name, topic_partition[1])
        if state.leader != self._node.node_id or partition_log is None \
                or not partition_log.is_leader:
            return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition_log.failed:
            return None, ErrorCode.KAFKA_STORAGE_ERROR
        made = self._partitions[key] = SharePartition(
            key, partition_log, state.leader_epoch, self._persister, self.settings,
            self._metrics.of(key.group_id), self._stir, self._fenced, _now_ms, self._node.now_ms)
        self._spawn(made.load())
        return made, ErrorCode.NONE

    def _fenced(self, partition: SharePartition) -> None:
        """Remove a fenced share partition, so that the next request creates a new one."""
        self._archiving.end(partition)
        if self._partitions.get(partition.key) is partition:
            del self._partitions[partition.key]
            self._left.discard(partition.key)
            handle = self._timers.pop(partition.key, None)
            if handle is not None:
                handle.cancel()

    def _stir(self, partition: SharePartition) -> None:
        """Retry the fetches that wait for a share partition."""
        for event in self._waiting.get(partition.key, ()):
            event.set()
        self._archiving.archive_due(partition)
        self._arm(partition)

    def _arm(self, partition: SharePartition) -> None:
        """Set the timer for the next lock timeout."""
        in_flight = partition.in_flight
        due_ms = None if in_flight is None else in_flight.next_due_ms
        if due_ms is None:
            return
        handle = self._timers.get(partition.key)
        when = (due_ms + 1) / 1000
        if handle is None or handle.when() > when:
            if handle is not None:
                handle.cancel()
            self._timers[partition.key] = asyncio.get_running_loop().call_at(
                when, self._due, partition)

    def _due(self, partition: SharePartition) -> None:
        self._timers.pop(partition.key, None)
        partition.expire()
        self._arm(partition)

    def topic_changed(self, topic: Topic) -> None:
        """Fence share partitions whose leader, leader epoch or log has changed."""
        for partition in list(self._partitions.values()):
            if partition.key.topic_id == topic.id:
                index = partition.key.partition
                state = topic.partitions[index]
                if state.leader != self._node.node_id \
                        or state.leader_epoch != partition.leader_epoch \
                        or self._node.logs.get(topic.name, index) is not partition.log:
                    partition.fence(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def topic_deleted(self, name: str) -> None:
        for partition in list(self._partitions.values()):
            if partition.key.topic_id not in self._node.image.topics_by_id:
                partition.fence(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # ---- sessions -------------------------------------------------------------------------------

    def begin_session(self, group_id: str, member_id: str,
                      topic_partitions: Iterable[TopicIdPartition],
                      connection: int) -> Session | None:
        """Start a session of a member. Returns None if there are too many; then the member has
        none.

        If the member has a session, the new one replaces it and the member keeps its records.
        """
        session = self.sessions.begin(group_id, member_id, topic_partitions, connection)
        if session is None:
            self._release(group_id, member_id)
        return session

    def end_session(self, group_id: str, member_id: str) -> None:
        """Close a member's session and release its records."""
        if self.sessions.end(group_id, member_id) is not None:
            self._release(group_id, member_id)

    def closed(self, connection: int) -> None:
        """End the sessions of a closed connection and release their records."""
        for session in self.sessions.closed(connection):
            self._release(session.group_id, session.member_id)

    def _release(self, group_id: str, member_id: str) -> None:
        """Release now: later, records of the member's next session would be released too."""
        # Includes partitions that were removed from the session.
        writes = [write for partition in self._partitions.values()
                  if partition.key.group_id == group_id
                  and (write := partition.release(member_id)) is not None]
        self._spawn(self._leave_group(group_id, writes))

    async def _leave_group(self, group_id: str, writes: list[Coroutine[Any, Any, Any]]) -> None:
        """Remove the share partitions of a group without sessions, once their state is written."""
        await asyncio.gather(*writes)
        # Offsets may be altered while the group has no members, and its next session must use them.
        # Only fetches of ended sessions can still wait here.
        if not self.sessions.has_group(group_id):
            for partition in list(self._partitions.values()):
                if partition.key.group_id == group_id:
                    self._leave_partition(partition)

    def _leave_partition(self, partition: SharePartition) -> None:
        if self._archiving.is_busy(partition):
            self._left.add(partition.key)
        else:
            partition.fence(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _written(self, partition: SharePartition) -> None:
        """Remove a share partition that was kept only for archiving."""
        if partition.key in self._left and self._partitions.get(partition.key) is partition:
            partition.fence(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # ---- acknowledgements -----------------------------------------------------------------------

    async def acknowledge(self, group_id: str, member_id: str, topic_partition: TopicIdPartition,
                          rows: Acknowledgements) -> tuple[Error, str | None]:
        """Acknowledge records; return (NONE, None) once it is durable, or (error, reason).

        If the leadership has moved and returned, this loads the state, which no longer has the
        records as acquired: the result is INVALID_RECORD_STATE.
        """
        partition, error = self._get(group_id, topic_partition)
        if partition is None:
            return error, None
        found = await partition.acknowledge(member_id, rows)
        self._arm(partition)
        return found

    # ---- fetches --------------------------------------------------------------------------------

    async def fetch(self, requested: Fetch,
                    topic_partitions: list[TopicIdPartition]) -> dict[TopicIdPartition, Row]:
        """Acquire records for a member from each partition.

        Returns when bytes_min are available, or after the wait time.
        """
        rows: dict[TopicIdPartition, Row] = {}
        partitions: dict[TopicIdPartition, SharePartition] = {}
        for topic_partition in topic_partitions:
            partition, error = self._get(requested.session.group_id, topic_partition)
            if partition is None:
                rows[topic_partition] = Row(error)
            else:
                partitions[topic_partition] = partition
        loop = asyncio.get_running_loop()
        until = loop.time() + min(max(requested.wait_ms_max, 0), WAIT_MS_MAX) / 1000
        event = asyncio.Event()
        keys = [partition.key for partition in partitions.values()]
        for key in keys:
            self._waiting.setdefault(key, {})[event] = None
        try:
            while True:
                event.clear()
                is_late = loop.time() >= until
                found = await self._acquire(requested, partitions, rows, is_late)
                if found or is_late or not partitions or requested.session.has_ended:
                    return rows
                watched = all([self._watch(partition) for partition in partitions.values()])
                await _wait(event, until if watched else min(until, loop.time() + POLL_SECONDS))
        finally:
            for key in keys:
                self._leave(event, key)

    def _leave(self, event: asyncio.Event, key: ShareKey) -> None:
        events = self._waiting[key]
        del events[event]
        if not events:
            del self._waiting[key]

    async def _acquire(self, requested: Fetch, partitions: dict[TopicIdPartition, SharePartition],
                       rows: dict[TopicIdPartition, Row], is_late: bool) -> bool:
        """Acquire records into `rows` if there are enough or time is up; return True if any."""
        for topic_partition, partition in list(partitions.items()):
            if partition.error != ErrorCode.NONE:
                rows[topic_partition] = Row(partition.error)
                del partitions[topic_partition]
        ready = {topic_partition: size for topic_partition, partition in partitions.items()
                 if (size := partition.bytes_to_read())}
        if not ready or not is_late and sum(ready.values()) < requested.bytes_min:
            return False
        bytes_max = max(1, requested.bytes_max // len(ready))
        left = requested.wanted.records_max
        found = False
        for topic_partition in ready:
            if left <= 0 or requested.session.has_ended:
                break
            partition = partitions[topic_partition]
            try:
                got = await partition.acquire(
                    requested.wanted._replace(records_max=left), bytes_max,
                    lambda: requested.session.has_ended)
            except LogError as error:
                rows[topic_partition] = Row(ErrorCode.of(error.code))
                continue
            self._arm(partition)
            if got.rows:
                rows[topic_partition] = Row(ErrorCode.NONE, None, got)
                left -= got.offset_count
                found = True
        return found

    # ---- new records ----------------------------------------------------------------------------

    def _watch(self, partition: SharePartition) -> bool:
        """Watch the log for new records; return False if there are some, or no slot is free."""
        in_flight = partition.in_flight
        if in_flight is None or not in_flight.can_acquire() or partition.is_watched:
            # _stir() is called when the load, the release or the write finishes.
            return True
        if self._waits is None:
            self._waits = FlushWaits(SLOTS)
            self._free = list(range(SLOTS))
            asyncio.get_running_loop().add_reader(self._waits.fileno(), self._woken)
        if not self._free:
            return False
        slot = self._free.pop()
        try:
            is_there = self._waits.wait_visible(
                slot, partition.log, in_flight.next_offset(),
                self.settings.is_committed(partition.key.group_id))
        except LogError:
            self._free.append(slot)
            return False
        if is_there:
            self._free.append(slot)
            # A read is in progress and calls _stir() at its end, or the next round finds the
            # records.
            return False
        self._watched[slot] = partition
        partition.is_watched = True
        return True

    def _woken(self) -> None:
        assert self._waits is not None
        for slot in self._waits.take():
            partition = self._watched.pop(slot)
            partition.is_watched = False
            self._free.append(slot)
            self._stir(partition)


async def _wait(event: asyncio.Event, until: float) -> None:
    try:
        async with asyncio.timeout_at(until):
            await event.wait()
    except TimeoutError:
        pass


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)

