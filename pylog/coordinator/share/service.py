"""The share coordinator service, on top of the coordinator runtime.

Owns: the runtime of `__share_group_state`; the offset up to which each of its partitions can be
  pruned.
Invariants: a record is deleted only when later records contain all of its state.
Source: KIP-932; Kafka's ShareCoordinatorService. The topic is not compacted: snapshots make earlier
  records redundant.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pylog import supervisor
from pylog._native.log.log import LogError
from pylog.config import internal_topics
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.internal_topic import Node, TopicSpec
from pylog.coordinator.runtime.runtime import Coordination, CoordinatorRuntime
from pylog.coordinator.runtime.shard import Shard
from pylog.coordinator.runtime.timers import Clock
from pylog.coordinator.share.partition_state import ShareKey, is_key
from pylog.coordinator.share.shard import ShareStates
from pylog.metadata.image.image import Topic
from pylog.protocol.errors import Error

TOPIC = internal_topics.SHARE_STATE
FEATURE = "share.version"

log = logging.getLogger("pylog.coordinator")


class ShareCoordinator:
    """Serves share partition state. broker: see internal_topic.Node."""

    def __init__(self, broker: Node):
        settings = self._settings = broker.settings
        self._broker = broker
        self._pruning: asyncio.Task[None] | None = None
        # Partition -> (state machine at the mark, log end offset at the mark).
        self._marks: dict[int, tuple[ShareStates, int]] = {}
        self.runtime: CoordinatorRuntime[ShareStates] = CoordinatorRuntime(Coordination(
            TopicSpec(
                TOPIC, settings["share.coordinator.state.topic.num.partitions"],
                settings[internal_topics.FACTORS[TOPIC]],
                {"cleanup.policy": "delete", "retention.ms": "-1", "compression.type": "producer",
                 "segment.bytes": str(settings["share.coordinator.state.topic.segment.bytes"])},
                settings["share.coordinator.state.topic.min.isr"]),
            self._open, prepare=ShareStates.forget_gone, expire=ShareStates.save_cold,
            expiry_ms=settings["share.coordinator.cold.partition.snapshot.interval.ms"],
            codec=settings["share.coordinator.state.topic.compression.codec"],
            write_timeout_s=settings["share.coordinator.write.timeout.ms"] / 1000), broker)
        self.is_key = is_key
        self.leader_of = self.runtime.leader_of
        self.shards = self.runtime.shards

    @property
    def is_enabled(self) -> bool:
        """Return True if share groups are enabled in the cluster."""
        return self._broker.image.features.get(FEATURE, 0) > 0

    @property
    def has_topic(self) -> bool:
        """Return True if share state may exist."""
        return self.runtime.topic.current is not None

    def start(self) -> None:
        """Start loading; return immediately. Call on the event loop."""
        self.runtime.start()
        self._pruning = asyncio.get_running_loop().create_task(
            supervisor.restarting("share state pruning", self._prune))

    async def stop(self) -> None:
        if self._pruning is not None:
            self._pruning.cancel()
            await asyncio.gather(self._pruning, return_exceptions=True)
        await self.runtime.stop()

    async def ensure_topic(self) -> Error:
        """Create the internal topic unless it exists. Returns an error code."""
        return await self.runtime.topic.ensure()

    def run(self, key: ShareKey, pending: DeferredResponse, step: Callable[..., Any],
            *arguments: Any) -> DeferredResponse:
        """Run a step that takes the key first; see runtime.run()."""
        return self.runtime.run(key.text, pending, step, key, *arguments)

    def topic_changed(self, topic: Topic) -> None:
        """Apply a new version of the topic: new, or with other partitions or leaders."""
        if topic.name == TOPIC:
            self.runtime.topic_changed(topic)

    def topic_deleted(self, name: str) -> None:
        """Delete the state of a deleted topic."""
        if name == TOPIC:
            self.runtime.topic_deleted()
        else:
            self.runtime.step_each(ShareStates.forget_gone)

    def _open(self, topic_id: bytes, index: int,
              clock: Clock) -> tuple[Callable[[], ShareStates], None]:
        settings = self._settings
        return lambda: ShareStates(
            clock, self._leader_epoch_of,
            settings["share.coordinator.snapshot.update.records.per.snapshot"],
            settings["share.coordinator.cold.partition.snapshot.interval.ms"]), None

    def _leader_epoch_of(self, topic_id: bytes, partition: int) -> int | None:
        topic = self._broker.image.topics_by_id.get(topic_id)
        if topic is None or partition >= len(topic.partitions):
            return None
        return topic.partitions[partition].leader_epoch

    # ---- pruning --------------------------------------------------------------------------------

    async def _prune(self) -> None:
        pause_s = self._settings["share.coordinator.state.topic.prune.interval.ms"] / 1000
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.prune()
            except Exception:
                # Retry, because otherwise the topic grows until the next restart.
                log.exception("a topic could not be pruned; trying again", extra={
                    "topic": TOPIC, "seconds": pause_s})

    async def prune(self) -> None:
        """Delete records of all partitions that later records make redundant."""
        for shard in self.shards()[0]:
            try:
                await self._prune_shard(shard)
            except LogError as error:
                log.warning("a partition could not be pruned", extra={
                    "topic": TOPIC, "partition": shard.index, "reason": str(error)})
            except Exception:
                supervisor.report("share state pruning", "a partition could not be pruned",
                                  topic=TOPIC, partition=shard.index)

    async def _prune_shard(self, shard: Shard[ShareStates]) -> None:
        state_machine, end = self._marks.get(shard.index, (None, 0))
        if state_machine is shard.state_machine and state_machine.unsaved:
            return
        if state_machine is shard.state_machine and end <= shard.journal.log.high_watermark:
            await asyncio.get_running_loop().run_in_executor(
                None, self._broker.logs.move_start, TOPIC, shard.index, end)
        # Append this loop iteration's records first, so that the mark covers them.
        shard.journal.append_now()
        shard.state_machine.mark()
        self._marks[shard.index] = shard.state_machine, shard.journal.log.end_offset

