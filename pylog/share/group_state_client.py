"""Initialize, alter and delete share partition state at the share coordinator, and report the
result to the group.

Owns: the operations in progress.
Invariants: a group marks a share partition as initialized only when its state is durable; failed
  initializations are reported to the group, so that it requests them again.
Source: KIP-932; Kafka's GroupCoordinatorService (persisterInitialize).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from pylog import supervisor
from pylog.coordinator.groups.service import GroupCoordinator
from pylog.coordinator.groups.share import heartbeat as share_heartbeat
from pylog.coordinator.groups.share import offsets as share_offsets
from pylog.coordinator.groups.share.heartbeat import ToInitialize
from pylog.coordinator.groups.share.offsets import Altering, Deleting, Fault
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.internal_topic import Node
from pylog.coordinator.share.partition_state import NO_OFFSET, ShareKey
from pylog.protocol.errors import Error, ErrorCode
from pylog.share.persister import Persister

PARTITIONS_AT_A_TIME = 256  # Share partitions per round of requests.
TopicIdPartition = tuple[bytes, int]

log = logging.getLogger("pylog.sharing")


class GroupStates:
    """Manages share partition state for groups. node: see internal_topic.Node."""

    def __init__(self, node: Node, groups: GroupCoordinator, persister: Persister):
        self._node = node
        self._groups = groups
        self._persister = persister
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def respond(self, message: ToInitialize) -> None:
        """Handle a message of a group's state machine, whose records are durable by now."""
        self._spawn(self._initialize(message))

    def refuse(self, error: Error) -> None:
        """Ignore a message whose records may not be durable: the group requests it again."""

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(
            supervisor.reporting("share group states", coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _initialize(self, requested: ToInitialize) -> None:
        try:
            errors = await self.initialize(
                requested.group_id, requested.state_epoch,
                {topic: dict.fromkeys(indexes, NO_OFFSET)
                 for topic, indexes in requested.partitions.items()})
        except Exception:
            # The group requests it again after its retry interval.
            log.exception("share partitions could not be initialized", extra={
                "group": requested.group_id})
            return
        for (topic, index), error in errors.items():
            if error != ErrorCode.NONE:
                log.warning("a share partition could not be initialized", extra={
                    "group": requested.group_id, "topic_id": topic.hex(), "partition": index,
                    "error": error.name})

    async def initialize(self, group_id: str, state_epoch: int,
                         starts: Mapping[bytes, Mapping[int, int]]
                         ) -> dict[TopicIdPartition, Error]:
        """Return {(topic id, partition): NONE if its state is durable and the group has recorded
        it}.
        """
        partitions = [(topic, index) for topic, indexes in starts.items() for index in indexes]
        faults = await self._each(partitions, lambda topic, index: self._persister.initialize(
            ShareKey(group_id, topic, index), state_epoch, starts[topic][index]))
        done: dict[bytes, list[int]] = {}
        failed: dict[bytes, list[int]] = {}
        for (topic, index), (error, _) in zip(partitions, faults, strict=True):
            (done if error == ErrorCode.NONE else failed).setdefault(topic, []).append(index)
        if failed:
            await self._groups.run(group_id, DeferredResponse(lambda error: error),
                                   share_heartbeat.uninitialized, group_id, failed)
        names = {topic: self._node.image.topics_by_id[topic].name for topic in done
                 if topic in self._node.image.topics_by_id}
        group_error: Error = ErrorCode.NONE
        if done:
            group_error = await self._groups.run(group_id, DeferredResponse(lambda error: error),
                                                 share_heartbeat.initialized, group_id, done, names)
        return {partition: fault if fault != ErrorCode.NONE else group_error
                for partition, (fault, _) in zip(partitions, faults, strict=True)}

    async def _each(self, partitions: list[TopicIdPartition],
                    request: Callable[[bytes, int], Awaitable[Any]]) -> list[Any]:
        """Return the results of request(topic id, partition) for all partitions, some at a time."""
        found: list[Any] = []
        for first in range(0, len(partitions), PARTITIONS_AT_A_TIME):
            found += await asyncio.gather(*(
                request(*partition)
                for partition in partitions[first:first + PARTITIONS_AT_A_TIME]))
        return found

    # ---- administrator requests -----------------------------------------------------------------

    async def alter(self, group_id: str, starts: Mapping[bytes, Mapping[int, int]]
                    ) -> tuple[Fault, dict[TopicIdPartition, Error]]:
        """Alter offsets. Return (request fault, {(topic id, partition): error})."""
        names = {topic: self._node.image.topics_by_id[topic].name for topic in starts}
        found: Altering = await self._groups.run(
            group_id, DeferredResponse(lambda error: Altering(Fault(error))),
            share_offsets.alter, group_id, starts, names)
        if found.fault.error != ErrorCode.NONE or not starts:
            return found.fault, {}
        return found.fault, await self.initialize(group_id, found.state_epoch, starts)

    async def delete_offsets(self, group_id: str, names: list[str]
                             ) -> tuple[Fault, dict[str, Fault]]:
        """Delete the offsets of topics. Return (request fault, {topic: fault})."""
        image = self._node.image
        found: Deleting = await self._groups.run(
            group_id, DeferredResponse(lambda error: Deleting(Fault(error), {}, {})),
            share_offsets.begin_deletion, group_id, names, image.topics)
        rows = dict(found.refused)
        faults = await self._deleted(group_id, found)
        for topic, error in faults.items():
            name = image.topics_by_id[topic].name
            rows[name] = Fault(error, None if error == ErrorCode.NONE else error.message)
        gone = [topic for topic, error in faults.items() if error == ErrorCode.NONE]
        group_error: Error = ErrorCode.NONE
        if gone:
            group_error = await self._groups.run(group_id, DeferredResponse(lambda error: error),
                                                 share_offsets.deleted, group_id, gone)
        return (found.fault if group_error == ErrorCode.NONE else Fault(group_error)), rows

    async def delete_group(self, group_id: str) -> Error:
        """Delete a group and all state of its share partitions. Return NONE, or the first error."""
        found: Deleting = await self._groups.run(
            group_id, DeferredResponse(lambda error: Deleting(Fault(error), {}, {})),
            share_offsets.begin_group_deletion, group_id, self._node.image.topics_by_id)
        faults = await self._deleted(group_id, found)
        error = next((error for error in (found.fault.error, *faults.values())
                      if error != ErrorCode.NONE), ErrorCode.NONE)
        if error != ErrorCode.NONE:
            return error
        pending: DeferredResponse = DeferredResponse(lambda error: error)
        gone: Error = await self._groups.run(group_id, pending, share_offsets.delete_group,
                                             group_id)
        return gone

    async def _deleted(self, group_id: str, requested: Deleting) -> dict[bytes, Error]:
        """Delete the state of share partitions. Return {topic id: NONE if all of it is deleted}."""
        partitions = [(topic, index) for topic,
                  indexes in requested.partitions.items() for index in indexes]
        faults = await self._each(partitions, lambda topic, index: self._persister.delete(
            ShareKey(group_id, topic, index)))
        found: dict[bytes, Error] = dict.fromkeys(requested.partitions, ErrorCode.NONE)
        for (topic, _), (error, _) in zip(partitions, faults, strict=True):
            # The state of a deleted topic is deleted with it.
            if error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                found[topic] = error
        return found
