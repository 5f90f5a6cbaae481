"""End offsets of local and remote partitions, for the lag of share groups.

Owns: nothing.
Invariants: every requested partition gets an end offset or an error.
Source: Kafka's PartitionMetadataClient.
"""

import asyncio
from collections.abc import Iterable

from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.runtime.internal_topic import Node
from pylog.metadata.image.image import NO_LEADER
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import Error, ErrorCode

CONSUMER = -1  # The replica id of a client that is no replica.
LATEST = -1
LIST_OFFSETS_VERSION = 7
Partition = tuple[str, int]


class EndOffsets:
    """Fetches end offsets.

    node: see internal_topic.Node. brokers: sends requests to other brokers.
    """

    def __init__(self, node: Node, brokers: Brokers):
        self._node = node
        self._brokers = brokers

    async def find(self, partitions: Iterable[Partition]) -> dict[Partition, int | Error]:
        """Return {(topic, partition): high watermark, or the error}."""
        found: dict[Partition, int | Error] = {}
        elsewhere: dict[int, list[Partition]] = {}
        for partition in partitions:
            state = self._node.image.partition(*partition)
            if state is None:
                found[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif state.leader == NO_LEADER:
                found[partition] = ErrorCode.LEADER_NOT_AVAILABLE
            elif state.leader != self._node.node_id:
                elsewhere.setdefault(state.leader, []).append(partition)
            else:
                partition_log = self._node.logs.get(*partition)
                found[partition] = ErrorCode.NOT_LEADER_OR_FOLLOWER if partition_log is None \
                    else partition_log.high_watermark
        for rows in await asyncio.gather(*(
                self._request(leader, requested) for leader, requested in elsewhere.items())):
            found.update(rows)
        return found

    async def _request(self, leader: int,
                       partitions: list[Partition]) -> dict[Partition, int | Error]:
        new = messages.ListOffsetsRequest
        topics: dict[str, list[int]] = {}
        for name, index in partitions:
            topics.setdefault(name, []).append(index)
        found: dict[Partition, int | Error] = dict.fromkeys(
            partitions, ErrorCode.NETWORK_EXCEPTION)
        try:
            response = await self._brokers.send(leader, new(replica_id=CONSUMER, topics=[
                new.ListOffsetsTopic(name=name, partitions=[
                    new.ListOffsetsPartition(partition_index=index, timestamp=LATEST)
                    for index in indexes]) for name, indexes in topics.items()]),
                LIST_OFFSETS_VERSION)
        except PeerError:
            return found
        for topic in response.topics:
            for row in topic.partitions:
                if (topic.name, row.partition_index) in found:
                    found[topic.name, row.partition_index] = row.offset if not row.error_code \
                        else ErrorCode.of(row.error_code)
        return found
