"""Assigns replicas to log directories of their broker: AssignReplicasToDirs.

Owns: nothing.
Invariants: an assignment to an offline directory removes the replica from the ISR in the same
  decision; an assignment to an online directory elects the replica if it can lead a partition
  without a leader.
Source: KIP-858; Kafka's ReplicationControlManager; responses as Kafka 4.4's.
"""

from pylog.metadata.controller.partitions import elections
from pylog.metadata.controller.partitions.partition_change import PartitionChange, Rules
from pylog.metadata.image.image import NO_LEADER, changed
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode


def assign(rules: Rules, request):
    """Decide an AssignReplicasToDirsRequest whose broker epoch was checked, in steps.

    Returns (records, response).
    """
    response = messages.AssignReplicasToDirsResponse
    broker = rules.image.brokers[request.broker_id]
    records, directories, offline, leaderless = [], [], [], []
    for directory in request.directories:
        id_ = bytes(directory.id)
        topics = []
        for wanted in directory.topics:
            yield
            topic = rules.image.topics_by_id.get(bytes(wanted.topic_id))
            responses = []
            for partition in wanted.partitions:
                index = partition.partition_index
                error = _fault(topic, index, broker.id)
                if topic is not None and error == ErrorCode.NONE:
                    change = PartitionChange(rules, topic, index)
                    change.directories[broker.id] = id_
                    record = change.record()
                    if record is not None:
                        records.append(record)
                    if not rules.has_disk(broker.id, topic.name, index, id_):
                        offline.append((topic, index, record))
                    elif topic.partitions[index].leader == NO_LEADER:
                        leaderless.append((topic, index, record))
                responses.append(response.PartitionData(partition_index=index, error_code=error))
            topics.append(response.TopicData(topic_id=wanted.topic_id, partitions=responses))
        directories.append(response.DirectoryData(id=directory.id, topics=topics))
    # A replica in an offline directory leaves the ISR.
    records += yield from elections.moved(rules, (
        (_with(topic, index, record), index) for topic, index, record in offline),
        leaving=broker.id)
    # The files of a replica may have been restored.
    records += yield from elections.moved(rules, (
        (_with(topic, index, record), index) for topic, index, record in leaderless))
    return records, response(error_code=ErrorCode.NONE, directories=directories)


def _fault(topic, index: int, broker_id: int) -> int:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker_id not in topic.partitions[index].replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE


def _with(topic, index: int, record):
    """Return the topic after one record of this decision."""
    if record is None:
        return topic
    states = list(topic.partitions)
    states[index] = changed(states[index], record)
    return topic._replace(partitions=tuple(states))
