"""DescribeCluster (60): the brokers; DescribeTopicPartitions (75): the paged view of topics.

Owns: nothing.
Called by: dispatch through api.HANDLERS; api.metadata for addresses.
Invariants: (1) without advertised.listeners a client is told the address that it dialled;
  (2) a page holds at most max.request.partition.size.limit partitions; (3) names are sorted,
  and entries made, a few at a time.
Source: KIP-700, KIP-919 (endpoint types), KIP-966 (DescribeTopicPartitions), KIP-1073 (fenced
  brokers).
"""

import heapq
import itertools

from pylog.metadata.controller import topic_name_fault
from pylog.metadata.image import NO_LEADER, is_internal
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2
NOT_ASKED = -2**31
PART_NAMES = 1000
# What a principal without restrictions may do with the cluster and with a topic (KIP-430).
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))


def addresses(broker, context):
    """Yields (node id, host, port, rack, fenced) of each broker, for the client's listener."""
    told = bool(broker.settings.advertised_listeners)
    listener = broker.network.listener_name(context.listener)
    for registered in broker.image.brokers.values():
        if registered.id == broker.node_id and not told:
            # Keeps (1).
            yield (registered.id, context.local_host, context.local_port, registered.rack,
                   registered.fenced)
            continue
        for endpoint in registered.endpoints:
            if endpoint.name == listener:
                yield (registered.id, endpoint.host, endpoint.port, registered.rack,
                       registered.fenced)


def describe_cluster(broker, context, request):
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
        endpoint_type=ENDPOINT_BROKERS, cluster_id=broker.cluster_id, controller_id=broker.node_id,
        brokers=[response.DescribeClusterBroker(
            broker_id=id_, host=host, port=port, rack=rack, is_fenced=fenced)
            for id_, host, port, rack, fenced in addresses(broker, context)
            if not fenced or request.include_fenced_brokers],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED))


def describe_topic_partitions(broker, context, request):
    image = broker.image
    limit = max(1, min(request.response_partition_limit,
                       broker.settings["max.request.partition.size.limit"]))
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
    entries, room, before = [], limit, None
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
    """Yields the names from `start` on, those asked for or all, as sorted runs. Keeps (3)."""
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
    """The replicas of a partition whose broker is not serving, or that lie on a disk that failed:
    an in-sync one on an active broker would lead otherwise.
    """
    if state.leader == NO_LEADER:
        return tuple(id_ for id_ in state.replicas
                     if id_ in state.isr or not image.broker_is_active(id_))
    for broker_id in state.replicas:
        broker = image.brokers.get(broker_id)
        if broker is None or broker.fenced:
            return tuple(id_ for id_ in state.replicas
                         if id_ not in image.brokers or image.brokers[id_].fenced)
    return ()


HANDLERS = {api.DESCRIBE_CLUSTER: describe_cluster,
            api.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions}
