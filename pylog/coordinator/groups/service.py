"""The group coordinator service, on top of the coordinator runtime.

Owns: the runtime of `__consumer_offsets`, event counters of groups, the rebalance history.
Invariants: when a topic is deleted, its committed offsets are removed. Groups that are only in
  state.lmdb follow when they are next loaded into memory.
Source: Kafka's group coordinator.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from pylog.config import internal_topics
from pylog.coordinator.groups.state import group_store
from pylog.coordinator.groups import offsets, transactional_offsets
from pylog.coordinator.groups.consumer import target_assignment
from pylog.coordinator.groups.share import heartbeat as share_heartbeat
from pylog.coordinator.runtime.transactional_batches import Marker
from pylog.coordinator.groups.state.classic_group import Committed
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.state.rebalance_history import History
from pylog.coordinator.runtime.internal_topic import Node, TopicSpec, partition_of
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.groups.state.group_config import limits_from
from pylog.coordinator.runtime.runtime import Coordination, CoordinatorRuntime
from pylog.coordinator.groups.snapshot import NO_ID, ShardSnapshot
from pylog.coordinator.runtime.timers import Clock
from pylog.metadata.image.image import Topic
from pylog.metadata.image.state_store import Store
from pylog.metadata.image.uuids import random_uuid
from pylog.protocol.errors import Error, ErrorCode

TOPIC = internal_topics.OFFSETS
_ELSEWHERE = frozenset((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE,
                        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
EXPIRY_STEP = 100  # Groups per step.


class GroupCoordinator:
    """Coordinates groups and committed offsets. broker: see internal_topic.Node."""

    def __init__(self, broker: Node):
        settings = self._settings = broker.settings
        self._broker = broker
        self._limits = limits_from(settings)
        self._store: Store | None = None
        self._changed_topics: set[str] = set()
        self._history: History | None = None
        self._events = dict.fromkeys(group_store.EVENTS, 0)
        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(Coordination(
            TopicSpec(
                TOPIC, settings["offsets.topic.num.partitions"],
                settings[internal_topics.FACTORS[TOPIC]],
                {"cleanup.policy": "compact", "compression.type": "producer",
                 "segment.bytes": str(settings["offsets.topic.segment.bytes"])}),
            self._open, transactional_offsets.replay, self._forget_deleted, _expiry,
            settings["offsets.retention.check.interval.ms"],
            settings["offsets.topic.compression.codec"],
            settings["offsets.commit.timeout.ms"] / 1000,
            changed=lambda store: store.repeats.void_changed(store.records),
            ended=lambda store: store.repeats.void_all()), broker)
        # Requests go directly to the runtime.
        self.run = self.runtime.run
        self.run_in_slices = self.runtime.run_in_slices
        self.query = self.runtime.query
        self.leader_of = self.runtime.leader_of
        self.shards = self.runtime.shards

    def start(self, store: Store) -> None:
        """Start loading; return immediately. Call on the event loop.

        store: the StateStore for snapshots.
        """
        self._store = store
        self._history = History(store.directory)
        self.runtime.start()

    async def stop(self) -> None:
        """Reject waiting requests and stop serving."""
        await self.runtime.stop()
        if self._history is not None:
            await self._history.close()

    async def ensure_topic(self) -> Error:
        """Create the internal topic unless it exists. Returns an error code."""
        return await self.runtime.topic.ensure()

    def topic_changed(self, topic: Topic) -> None:
        """Apply a new version of the topic: new, or with other partitions or leaders."""
        if topic.name == TOPIC:
            self.runtime.topic_changed(topic)
        self._schedule_topic_check(topic.name)

    def topic_deleted(self, name: str) -> None:
        """Remove the committed offsets of a deleted topic."""
        if name == TOPIC:
            self.runtime.topic_deleted()
        else:
            self.runtime.step_each(lambda store: _forget_topic(store, name))
            self.runtime.step_each(self._forget_share_partitions)
            self._schedule_topic_check(name)

    def _schedule_topic_check(self, name: str) -> None:
        """Refresh the groups that subscribe to a changed topic, at the end of this loop iteration.

        Topics are often created and deleted in batches.
        """
        if self._store is None:
            return
        if not self._changed_topics:
            asyncio.get_running_loop().call_soon(self._check_topics)
        self._changed_topics.add(name)

    def _check_topics(self) -> None:
        names, self._changed_topics = self._changed_topics, set()
        self.runtime.step_each(lambda store: target_assignment.topics_changed(store, names))

    def partition_of(self, group_id: str) -> int:
        """Return the offsets topic partition that holds the group, or -1 if there is no topic."""
        topic = self.runtime.topic.current
        return -1 if topic is None else partition_of(group_id, len(topic.partitions))

    def producer_at(self, index: int, producer_id: int) -> tuple[tuple[int, int, int, int], Error]:
        """Return (producer_of(), NONE), or (UNKNOWN, error) if this broker does not serve the
        partition.
        """
        return self.runtime.producer_at(index, producer_id)

    def end_transaction(self, index: int, marker: Marker, pending: DeferredResponse) -> None:
        """Answer `pending` with an error code when the marker is durable."""
        def on_response(error: Error) -> None:
            # Same error as for a partition that has moved or is not open yet: the caller retries.
            pending.respond(ErrorCode.NOT_LEADER_OR_FOLLOWER if error in _ELSEWHERE else error)

        self.runtime.run_as_producer(
            index, DeferredResponse(lambda error: error), marker.fault, marker.producer_id,
            transactional_offsets.end, marker).then(on_response)

    @property
    def events(self) -> dict[str, int]:
        """Return {event: count since the start, over all groups}."""
        return {**self._events, "record_written": self.runtime.records_written}

    def history(self, group_id: str, limit: int) -> list[dict[str, Any]]:
        """Return the latest rebalances of a group, newest first. Callable on any thread; reads
        files.
        """
        return [] if self._history is None else self._history.find(group_id, limit)

    # ---- state machines -------------------------------------------------------------------------

    def _open(self, topic_id: bytes, index: int,
              clock: Clock) -> tuple[Callable[[], GroupShard], ShardSnapshot]:
        """Return (function that creates an empty state machine of one partition, its snapshot)."""
        assert self._store is not None
        snapshot = ShardSnapshot(self._store, topic_id, index)

        def make() -> GroupShard:
            def find(group_id: str) -> Committed | None:
                group = snapshot.find(group_id)
                # Offsets removed during a load are recorded at its end: otherwise their tombstones
                # would follow later commits that are already in the log.
                if group is not None and not store.is_loading:
                    self._forget_gone(store, group)
                return group

            store = GroupShard(
                self._limits, clock, random_uuid, find, snapshot.names, self._events,
                lambda: self._broker.image, self._rebalanced)
            return store

        return make, snapshot

    def _rebalanced(self, rebalance: dict[str, Any]) -> None:
        assert self._history is not None
        self._events["rebalance_ms"] += rebalance["took_ms"]
        self._events["member_stopped_ms"] += rebalance["stopped_ms"]
        self._history.add(rebalance)

    def _forget_gone(self, store: GroupShard, group: Committed) -> None:
        """Remove offsets of topics that were deleted since the commit."""
        topics, before = self._broker.image.topics, len(store.records)
        for (topic, partition), entry in list(group.offsets.items()):
            if entry.topic_id != NO_ID and (
                    topic not in topics or topics[topic].id != entry.topic_id):
                offsets.forget(store, group, topic, partition)
        store.cleanups += len(store.records) - before

    def _forget_deleted(self, store: GroupShard) -> None:
        """Remove offsets of deleted topics from all groups in memory."""
        for group in list(store.groups.values()):
            self._forget_gone(store, group)
        self._forget_share_partitions(store)

    def _forget_share_partitions(self, store: GroupShard) -> None:
        if store.shares:
            share_heartbeat.forget_topics(
                store, {topic.id for topic in self._broker.image.topics.values()})


def _forget_topic(store: GroupShard, name: str) -> None:
    for group in list(store.groups.values()):
        offsets.forget_topic(store, group, name)


def _expiry(store: GroupShard) -> Iterator[object]:
    """Expire unused groups and offsets, some groups per step."""
    every = [*store.groups, *(name for name, *_ in store.elsewhere())]
    return _expire_all(store, every)


def _expire_all(store: GroupShard, group_ids: list[str]) -> Iterator[None]:
    for first in range(0, len(group_ids), EXPIRY_STEP):
        for group_id in group_ids[first:first + EXPIRY_STEP]:
            _expire_group(store, group_id)
        yield


def _expire_group(store: GroupShard, group_id: str) -> None:
    """Expire offsets of a group. Unloads the group again if nothing changed."""
    was_here, before = group_id in store.groups, len(store.records)
    group = store.find(group_id)
    if group is None:
        return
    offsets.expire(store, group)
    # A changed group stays in memory: a snapshot write deletes groups that are not in memory.
    if not was_here and len(store.records) == before:
        store.groups.pop(group_id, None)
