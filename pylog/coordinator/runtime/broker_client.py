"""Requests from a coordinator to other brokers: markers to partition leaders, and verification to
transaction coordinators.

Owns: one connection to each broker.
Invariants: every requested partition gets a result, and an unreachable broker gives a retriable
  error; a call ends when the controller fences the broker or its broker epoch changes; a slow
  leader does not delay the markers of other leaders; an unreachable broker is logged once until it
  responds again, because callers only see a retriable error.
Source: Kafka's marker channel manager and AddPartitionsToTxnManager.
"""

import asyncio
import logging
from typing import Any

from pylog.coordinator.runtime.internal_topic import Node
from pylog.coordinator.runtime.local_append import Markers, Partition
from pylog.coordinator.runtime.transactional_batches import Marker
from pylog.metadata.image.image import NO_LEADER, Topic
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import Error, ErrorCode

log = logging.getLogger("pylog.coordinator")

MARKERS_VERSION = 2
PARTITIONS_VERSION = 5
PRODUCE_VERSION = 9
ACKS_ALL = -1
PRODUCE_TIMEOUT_MS = 5000
CALL_SECONDS = 10.0
FENCING_CHECK_SECONDS = 0.1  # How often to check the metadata image during a call.


class Brokers:
    """Sends requests to other brokers. markers: writes to partitions that this broker leads."""

    def __init__(self, node: Node, markers: Markers):
        self._node = node
        self._markers = markers
        self._peers: dict[int, Any] = {}
        self._connecting: dict[int, asyncio.Lock] = {}
        self._unresponsive: set[int] = set()  # Unreachable brokers that are already logged.

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers = {}

    async def write(self, marker: Marker,
                    partitions: tuple[Partition, ...]) -> dict[Partition, Error]:
        """Return {partition: NONE if its leader has the marker, otherwise the error}."""
        by_leader: dict[int, list[Partition]] = {}
        for partition in partitions:
            state = self._node.image.partition(*partition)
            leader = NO_LEADER if state is None else state.leader
            by_leader.setdefault(leader, []).append(partition)
        found: dict[Partition, Error] = dict.fromkeys(
            by_leader.pop(NO_LEADER, ()), ErrorCode.LEADER_NOT_AVAILABLE)
        under_way = [
            self._markers.write(marker, rows) if leader == self._node.node_id
            else self._sent(leader, marker, rows) for leader, rows in by_leader.items()]
        # Send to all leaders in parallel. With one leader, gather() would cost a task and two loop
        # iterations.
        for written in [await under_way[0]] if len(under_way) == 1 \
                else await asyncio.gather(*under_way):
            found.update(written)
        return found

    async def append(self, topic: Topic, index: int, data: bytes) -> Error:
        """Append a batch to a partition with acks=all semantics and return the error code.

        Raises PeerError if the leader is unreachable.
        """
        leader = topic.partitions[index].leader
        if leader == self._node.node_id:
            return await self._markers.append(topic.name, index, data)
        if leader == NO_LEADER:
            return ErrorCode.LEADER_NOT_AVAILABLE
        new = messages.ProduceRequest
        response = await self.send(leader, new(
            acks=ACKS_ALL, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=[new.TopicProduceData(
                name=topic.name, partition_data=[
                    new.PartitionProduceData(index=index, records=data)])]), PRODUCE_VERSION)
        for row in response.responses:
            for cell in row.partition_responses:
                return ErrorCode.of(cell.error_code)
        return ErrorCode.UNKNOWN_SERVER_ERROR

    async def _sent(self, leader: int, marker: Marker,
                    partitions: list[Partition]) -> dict[Partition, Error]:
        new = messages.WriteTxnMarkersRequest
        request = new(markers=[new.WritableTxnMarker(
            producer_id=marker.producer_id, producer_epoch=marker.epoch,
            transaction_result=marker.committed, coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.version, topics=[
                new.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                for name, indexes in _by_topic(partitions)])])
        found = dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        try:
            response = await self.send(leader, request, MARKERS_VERSION)
        except PeerError:
            return found
        for row in response.markers:
            for topic in row.topics:
                for cell in topic.partitions:
                    found[topic.name, cell.partition_index] = ErrorCode.of(cell.error_code)
        return found

    async def query_coordinator(self, broker_id: int, id_: str, producer_id: int, epoch: int,
                              partitions: list[Partition],
                              verify_only: bool) -> dict[Partition, Error]:
        """Return {partition: result of the transaction coordinator on `broker_id`}."""
        new = messages.AddPartitionsToTxnRequest
        request = new(transactions=[new.AddPartitionsToTxnTransaction(
            transactional_id=id_, producer_id=producer_id, producer_epoch=epoch,
            verify_only=verify_only, topics=[
                new.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in _by_topic(partitions)])])
        try:
            response = await self.send(broker_id, request, PARTITIONS_VERSION)
        except PeerError:
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        if response.error_code:
            # As Kafka: the client cannot fix a broker's missing CLUSTER_ACTION permission.
            refused = ErrorCode.INVALID_TXN_STATE \
                if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED \
                else ErrorCode.of(response.error_code)
            return dict.fromkeys(partitions, refused)
        found = dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        for row in response.results_by_transaction:
            for topic in row.topic_results:
                for cell in topic.results_by_partition:
                    found[topic.name, cell.partition_index] = \
                        ErrorCode.of(cell.partition_error_code)
        return found

    async def send(self, broker_id: int, request: Any, version: int) -> Any:
        """Send a request to another broker and return the response.

        Raises PeerError, and logs the first failure of each outage.
        """
        try:
            response = await self._call_unless_fenced(broker_id, request, version)
        except PeerError as error:
            if broker_id not in self._unresponsive:
                self._unresponsive.add(broker_id)
                log.warning("a broker does not respond; retrying", extra={
                    "broker": broker_id, "reason": str(error)})
            raise
        self._unresponsive.discard(broker_id)
        return response

    async def _call_unless_fenced(self, broker_id: int, request: Any, version: int) -> Any:
        """Send a request and return the response. Raises PeerError, also on fencing."""
        known = self._node.image.brokers.get(broker_id)
        responding = asyncio.ensure_future(self._call(broker_id, request, version))
        try:
            while not (await asyncio.wait([responding], timeout=FENCING_CHECK_SECONDS))[0]:
                if known is not None and self._has_gone(broker_id, known.epoch):
                    # The broker was fenced: its response must not be used.
                    peer = self._peers.pop(broker_id, None)
                    if peer is not None:
                        peer.close()
                    raise PeerError(f"broker {broker_id} is fenced")
            return responding.result()
        finally:
            responding.cancel()

    def _has_gone(self, broker_id: int, epoch: int) -> bool:
        registered = self._node.image.brokers.get(broker_id)
        return registered is None or registered.fenced or registered.epoch != epoch

    async def _call(self, broker_id: int, request: Any, version: int) -> Any:
        async with self._connecting.setdefault(broker_id, asyncio.Lock()):
            peer = self._peers.get(broker_id)
            if peer is None or peer.failure is not None:
                # Imported here: a single-node cluster never needs it.
                from pylog.peer.connection import Peer

                host, port = self._address_of(broker_id)
                peer = await Peer.connect(host, port, f"coordinator-{self._node.node_id}",
                                          credentials=self._node.credentials)
                self._peers[broker_id] = peer
        return await peer.call(request, version, CALL_SECONDS)

    def _address_of(self, broker_id: int) -> tuple[str, int]:
        name = self._node.settings.between_brokers
        registered = self._node.image.brokers.get(broker_id)
        for endpoint in () if registered is None else registered.endpoints:
            if endpoint.name == name:
                return endpoint.host, endpoint.port
        raise PeerError(f"broker {broker_id} has no listener {name}")


def _by_topic(partitions: list[Partition]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return list(found.items())
