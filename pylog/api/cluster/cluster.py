"""DescribeCluster (60): the brokers; UnregisterBroker (64): removes a broker permanently;
DescribeTopicPartitions (75): the paged view of topics.

Owns: nothing.
Invariants: without advertised.listeners a client gets the listener's host or, if the listener is
  bound to every interface, the address that it connected to; a page has at most
  max.request.partition.size.limit partitions; names are sorted, and entries created, in chunks.
Source: KIP-700, KIP-919 (endpoint types), KIP-966 (DescribeTopicPartitions), KIP-1073 (fenced
  brokers).
"""

from __future__ import annotations

import heapq
import itertools

from pylog.metadata.controller.partitions.partition_change import is_online
from pylog.metadata.controller.partitions.topics import topic_name_fault
from pylog.metadata.image.image import NO_LEADER, is_internal
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.config import Settings
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.service import MetadataService

ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2
NOT_REQUESTED = -2**31
PART_NAMES = 1000
# Operations of a principal without restrictions on the cluster and on a topic (KIP-430).
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))


class Addresses:
    """Addresses of the brokers for clients. listener_name: the name of a listener by its number."""

    def __init__(self, metadata: MetadataService, settings: Settings, node_id: int,
                 listener_name: Callable[[int], str]):
        self._metadata = metadata
        self._settings = settings
        self._node_id = node_id
        self._listener_name = listener_name

    def of(self, context: RequestContext) -> Iterator[tuple[int, str, int, str | None, bool]]:
        """Yield (node id, host, port, rack, fenced) of each broker, for the client's listener."""
        are_advertised = bool(self._settings.advertised_listeners)
        listener = self._listener_name(context.listener)
        for registered in self._metadata.image.brokers.values():
            if registered.id == self._node_id and not are_advertised:
                # A client that verifies a TLS certificate needs the host name in it.
                yield (registered.id, self._host_of(listener) or context.local_host,
                       context.local_port, registered.rack, registered.fenced)
                continue
            for endpoint in registered.endpoints:
                if endpoint.name == listener:
                    yield (registered.id, endpoint.host, endpoint.port, registered.rack,
                           registered.fenced)


    def _host_of(self, name: str) -> str | None:
        """Return the host that a listener is bound to, None for every interface."""
        return next((listener.host for listener in self._settings.listeners
                     if listener.name == name and not listener.is_wildcard), None)


class ClusterApi:
    """Descriptions from the current image. controller: decides on brokers."""

    def __init__(self, addresses: Addresses, metadata: MetadataService, settings: Settings,
                 node_id: int, controller: ActiveController):
        self._addresses = addresses
        self._controller = controller
        self._metadata = metadata
        self._settings = settings
        self._node_id = node_id

    def handlers(self) -> dict[int, Handler]:
        return {
            api.DESCRIBE_CLUSTER: self.describe_cluster,
            api.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions,
            api.UNREGISTER_BROKER: self.unregister_broker,
            api.UNREGISTER_CONTROLLER: self.unregister_controller,
        }

    async def unregister_broker(self, context: RequestContext, request: Message) -> Message:
        """Unregister a broker; a running one registers again (KIP-631).

        Errors: BROKER_ID_NOT_REGISTERED; INVALID_REQUEST for the only broker, which is its own
        controller.
        """
        return await self._controller.unregister(request)

    async def unregister_controller(self, context: RequestContext, request: Message) -> Message:
        """Reject the removal of a controller's registration: none is kept (KIP-1312).

        Errors: CONTROLLER_ID_NOT_REGISTERED; INVALID_REQUEST for the active controller;
        UNSUPPORTED_VERSION below metadata.version 33.
        """
        return await self._controller.unregister_controller(request)

    def describe_cluster(self, context: RequestContext, request: Message) -> Message:
        """Return the cluster's id, its brokers and, on request, the client's permitted operations
        (KIP-700).

        Includes fenced brokers on request (KIP-1073). Errors: MISMATCHED_ENDPOINT_TYPE for
        controllers' endpoints (KIP-919); UNSUPPORTED_ENDPOINT_TYPE for other types.
        """
        response = messages.DescribeClusterResponse
        fault = None
        if request.endpoint_type == ENDPOINT_CONTROLLERS:
            fault = ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this listener describes brokers"
        elif request.endpoint_type != ENDPOINT_BROKERS:
            fault = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, \
                f"endpoint type {request.endpoint_type} is not known"
        if fault is not None:
            return response(error_code=fault[0], error_message=fault[1])
        return response(
            endpoint_type=ENDPOINT_BROKERS, cluster_id=self._metadata.cluster_id,
            controller_id=self._node_id,
            brokers=[response.DescribeClusterBroker(
                broker_id=id_, host=host, port=port, rack=rack, is_fenced=fenced)
                for id_, host, port, rack, fenced in self._addresses.of(context)
                if not fenced or request.include_fenced_brokers],
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations
                else NOT_REQUESTED))

    def describe_topic_partitions(
            self, context: RequestContext, request: Message) -> Iterator[Message | None]:
        """Yield one page of topics by name, from the cursor on, and the next cursor (KIP-966).

        response_partition_limit: partitions of a page, at most max.request.partition.size.limit.
        Errors: INVALID_REQUEST for a negative partition in the cursor. Topics:
        UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION.
        """
        image = self._metadata.image
        limit = max(1, min(request.response_partition_limit,
                           self._settings["max.request.partition.size.limit"]))
        start, first_of = "", {}
        if request.cursor is not None:
            if request.cursor.partition_index < 0:
                yield _refused(request, ErrorCode.INVALID_REQUEST)
                return
            start = request.cursor.topic_name
            first_of[start] = request.cursor.partition_index
        runs = []
        for run in _sorted(request, image, start):
            runs.append(run)
            yield None
        response = messages.DescribeTopicPartitionsResponse
        entries: list[Message] = []
        room, before = limit, None
        for name in heapq.merge(*runs):
            if name == before:
                continue
            before = name
            if len(entries) >= PART_NAMES:
                yield response(topics=entries)
                entries = []
            topic, first = image.topics.get(name), first_of.get(name, 0)
            if topic is None:
                entries.append(_unknown(name))
                continue
            if room == 0:
                yield response(topics=entries, next_cursor=_cursor(name, first))
                return
            entries.append(_topic(image, topic, first, room))
            left = len(topic.partitions) - first
            if left > room:
                yield response(topics=entries, next_cursor=_cursor(name, first + room))
                return
            room -= max(left, 0)
        yield response(topics=entries)


def _sorted(request, image, start: str):
    """Yield the requested names from `start` on, or all, as sorted runs in chunks."""
    names = (topic.name for topic in request.topics) if request.topics else iter(image.topics)
    while run := list(itertools.islice(names, PART_NAMES)):
        yield sorted([name for name in run if name >= start])


def _refused(request, error):
    response = messages.DescribeTopicPartitionsResponse
    return response(topics=[
        response.DescribeTopicPartitionsResponseTopic(error_code=error, name=topic.name)
        for topic in request.topics])


def _cursor(name, partition):
    return messages.DescribeTopicPartitionsResponse.Cursor(
        topic_name=name, partition_index=partition)


def _unknown(name):
    return messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_name_fault(name) is None
                    else ErrorCode.INVALID_TOPIC_EXCEPTION),
        name=name, is_internal=is_internal(name), topic_authorized_operations=TOPIC_OPERATIONS)


def _topic(image, topic, first, room):
    new = messages.DescribeTopicPartitionsResponse
    entries = []
    for index in range(first, min(first + room, len(topic.partitions))):
        state = topic.partitions[index]
        reachable = state.leader != NO_LEADER and state.leader in image.brokers
        entries.append(new.DescribeTopicPartitionsResponsePartition(
            partition_index=index, leader_id=state.leader if reachable else NO_LEADER,
            leader_epoch=state.leader_epoch, replica_nodes=state.replicas, isr_nodes=state.isr,
            eligible_leader_replicas=state.eligible_leader_replicas,
            last_known_elr=state.last_known_elr,
            offline_replicas=offline_replicas(image, state)))
    return new.DescribeTopicPartitionsResponseTopic(
        name=topic.name, topic_id=topic.id, is_internal=is_internal(topic.name),
        partitions=entries, topic_authorized_operations=TOPIC_OPERATIONS)


def offline_replicas(image, state) -> tuple:
    """Return the replicas of a partition whose broker is inactive, or that are on a failed disk: if
    there is no leader, every in-sync replica on an active broker must have a failed disk.
    """
    if state.leader == NO_LEADER:
        return tuple(id_ for id_ in state.replicas
                     if id_ in state.isr or not image.broker_is_active(id_))
    placed = len(state.directories) == len(state.replicas)
    found: tuple = ()
    for at, id_ in enumerate(state.replicas):
        broker = image.brokers.get(id_)
        if broker is None or broker.fenced or placed and not is_online(
                image, id_, state.directories[at]):
            found += id_,
    return found
