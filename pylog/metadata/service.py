"""The controller at work: decides on the newest image, appends, applies, and lets logs follow.

Owns: the image in force, the block of producer ids, the order of decisions.
Called by: broker (start, stop), api and dispatch (everything else), on the event loop.
Invariants: (1) one decision at a time, each on the image that holds all records before it; (2) the image
  changes only after its records are on disk; (3) a topic is answered as created when its partitions are
  open, as deleted when they are gone; (4) a producer id is given out once.
Source: KIP-631 (registration), KIP-320 (leader epochs).
"""

import asyncio
import logging

from pylog.metadata import controller
from pylog.metadata.image import NO_LEADER, Image, apply
from pylog.protocol.errors import ErrorCode

RECORDS_PER_APPEND_MAX = 10_000
_BELONG_TO_THE_ONE_BEFORE = frozenset(("PartitionRecord", "ConfigRecord"))

log = logging.getLogger("pylog.metadata")


class Controller:
    """The node's controller over a metadata log; `logs` are the partitions that this node holds."""

    def __init__(self, metadata_log, logs, settings, random, node_id: int):
        self.image = Image()
        self._log = metadata_log
        self._logs = logs
        self._settings = settings
        self._random = random
        self._node_id = node_id
        self._epoch = -1
        self._deciding = asyncio.Lock()
        self._producer_ids = controller.ProducerIds(0, 0)

    async def start(self, image: Image, endpoints, directories, clean: bool) -> None:
        """Replays the log behind `image`, takes office and registers this broker.

        endpoints: [(listener, host, port, security protocol's number)]. directories: the log directories' ids.
        clean: false gives new leader epochs to what this broker leads.
        """
        self.image = self._replayed(image)
        await self._log.session(self._node_id)
        self._epoch = await self._log.elect(self._node_id)
        async with self._deciding:
            if self.image.offset == -1:
                await self._commit(controller.bootstrap(self.image))
            records = controller.register_broker(
                self.image, self._node_id, endpoints, self._settings["broker.rack"], directories,
                self._random)
            await self._commit(records)
            records = controller.unfence_broker(self.image, self._node_id)
            if not clean:
                records += controller.raise_leader_epochs(self.image, self._node_id)
            await self._commit(records)

    def _replayed(self, image: Image) -> Image:
        for batch in self._log.read(image.offset + 1):
            image = apply(image, batch.records, batch.last_offset, batch.epoch)
        return image

    async def create_topics(self, request) -> list:
        """Decides a CreateTopicsRequest and opens the partitions. Returns controller.TopicResults."""
        async with self._deciding:
            records, results = controller.create_topics(
                self.image, request, self._settings, self._random)
            await self._commit(records)
            if records:
                made = [result.name for result in results if result.error == ErrorCode.NONE]
                await self._in_thread(self._open_topics, made)
        return results

    async def delete_topics(self, topics) -> list:
        """Removes topics: [(name or None, 16-byte id)]. Returns controller.TopicResults."""
        async with self._deciding:
            before = self.image
            records, results = controller.delete_topics(before, topics, self._settings)
            await self._commit(records)
            gone = [before.topics[result.name] for result in results
                    if result.error == ErrorCode.NONE]
            if gone:
                await self._in_thread(self._close_topics, gone)
        return results

    async def next_producer_id(self) -> int:
        """An id that no producer had before (4)."""
        while not self._producer_ids.count:
            async with self._deciding:
                if not self._producer_ids.count:
                    records, block = controller.allocate_producer_ids(self.image, self._node_id)
                    await self._commit(records)
                    self._producer_ids = block
        first, count = self._producer_ids
        self._producer_ids = controller.ProducerIds(first + 1, count - 1)
        return first

    async def _commit(self, records: list) -> None:
        """Makes records part of the log, then of the image (2)."""
        for part in _parts(records):
            last_offset = await self._log.append(part, self._epoch, self.image.offset + 1)
            assert last_offset == self.image.offset + len(part), (last_offset, self.image.offset)
            self.image = apply(self.image, part, last_offset, self._epoch)

    async def _in_thread(self, work, *args):
        # Directories and files are made there; the loop goes on answering.
        return await asyncio.get_running_loop().run_in_executor(None, work, *args)

    def _open_topics(self, names) -> None:
        for name in names:
            topic = self.image.topics[name]
            self._logs.create(topic.name, topic.id, self.local_partitions(topic),
                              self.image.topic_config(name))

    def _close_topics(self, topics) -> None:
        for topic in topics:
            self._logs.delete(topic.name)

    def local_partitions(self, topic) -> list:
        """A Role per partition of the topic, None where this node holds no replica."""
        return local_partitions(topic, self._node_id)


def local_partitions(topic, node_id: int) -> list:
    """(leads, leader epoch, alone in the ISR) per partition; None where the node holds no replica."""
    roles = {}
    found = []
    for state in topic.partitions:
        # Partition states are shared, so that a topic has few different ones.
        if state not in roles:
            roles[state] = None if node_id not in state.replicas else (
                state.leader == node_id and state.leader != NO_LEADER, state.leader_epoch,
                len(state.isr) <= 1)
        found.append(roles[state])
    return found


def _parts(records: list):
    """Records in stretches that are appended whole: a topic never without all of its partitions."""
    first = 0
    while first < len(records):
        end = min(first + RECORDS_PER_APPEND_MAX, len(records))
        while end < len(records) and type(records[end]).__name__ in _BELONG_TO_THE_ONE_BEFORE:
            end += 1
        yield records[first:end]
        first = end
