"""ISR changes that leaders request: AlterPartition.

Owns: nothing; no clock, no disk.
Invariants: only the leader of the newest epoch changes an ISR, starting from the state in its
  request; a replica joins only with its broker's current epoch, while that broker is neither fenced
  nor stopping and its directory is online; an error of one partition does not affect the others.
Source: KIP-497 (AlterPartition), KIP-704, KIP-841, KIP-903 (broker epochs); order of checks as in
  Kafka's ReplicationControlManager.
"""

from pylog.metadata.controller.partitions.partition_change import (
    RECOVERED,
    RECOVERING,
    UNCLEAN,
    PartitionChange,
    Rules,
)
from pylog.metadata.image.image import NO_LEADER_CHANGE, Image, changed
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

WITH_EPOCHS = 3  # the first version with broker epochs


def change_isr(rules: Rules, request, version: int):
    """Decide an AlterPartitionRequest whose broker epoch was checked. Returns (records, response).
    """
    response = messages.AlterPartitionResponse
    records, topics = [], []
    for wanted in request.topics:
        topic = rules.image.topics_by_id.get(bytes(wanted.topic_id))
        responses = []
        for partition in wanted.partitions:
            record, partition_response = _altered(rules, topic, partition, request.broker_id,
                                                  version)
            if record is not None:
                records.append(record)
            responses.append(partition_response)
        topics.append(response.TopicData(topic_id=wanted.topic_id, partitions=responses))
    return records, response(error_code=ErrorCode.NONE, topics=topics)


def _altered(rules, topic, wanted, broker_id, version) -> tuple:
    new = messages.AlterPartitionResponse.PartitionData
    index = wanted.partition_index
    members = [(member.broker_id, member.broker_epoch) for member in wanted.new_isr_with_epochs] \
        if version >= WITH_EPOCHS else [(id_, -1) for id_ in wanted.new_isr]
    error = _fault(rules, topic, wanted, members, broker_id)
    if error != ErrorCode.NONE:
        return None, new(partition_index=index, error_code=error)
    change = PartitionChange(rules, topic, index)
    change.isr = [id_ for id_, _ in members]
    change.recovery = wanted.leader_recovery_state
    if rules.allows_unclean(topic.name):
        change.election = UNCLEAN
    state, record = change.state, change.record()
    if record is not None:
        state = changed(state, record)
        if record.leader not in (broker_id, NO_LEADER_CHANGE):
            # The completed reassignment moved the leadership.
            return record, new(partition_index=index, error_code=ErrorCode.NEW_LEADER_ELECTED)
    return record, new(
        partition_index=index, error_code=ErrorCode.NONE, leader_id=state.leader,
        leader_epoch=state.leader_epoch, isr=list(state.isr),
        leader_recovery_state=state.leader_recovery_state, partition_epoch=state.partition_epoch)


def _fault(rules: Rules, topic, wanted, members, broker_id) -> int:
    """Return the error code of a change, NONE if it comes from the current leader and is valid."""
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not 0 <= wanted.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    state = topic.partitions[wanted.partition_index]
    if wanted.leader_epoch > state.leader_epoch or wanted.partition_epoch > state.partition_epoch:
        # The broker has read from a newer controller than this one.
        return ErrorCode.NOT_CONTROLLER
    if wanted.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != state.leader:
        return ErrorCode.INVALID_REQUEST
    if wanted.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    ids = [id_ for id_, _ in members]
    if not ids or len(set(ids)) < len(ids) or not set(ids) <= set(state.replicas):
        return ErrorCode.INVALID_REQUEST
    recovery = wanted.leader_recovery_state
    if state.leader not in ids or recovery not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if recovery == RECOVERING and (len(ids) > 1 or state.leader_recovery_state == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    # Joining replicas must be on live brokers, and have their current epoch.
    if all(_may_join(rules.image, *member) and _has_disk(rules, topic, wanted, member[0])
           for member in members):
        return ErrorCode.NONE
    return ErrorCode.INELIGIBLE_REPLICA


def _has_disk(rules: Rules, topic, wanted, broker_id: int) -> bool:
    """Return False if the replica's directory is known to be offline."""
    index = wanted.partition_index
    state = topic.partitions[index]
    if len(state.directories) != len(state.replicas):
        return True
    return rules.has_disk(broker_id, topic.name, index,
                          state.directories[state.replicas.index(broker_id)])


def _may_join(image: Image, broker_id: int, broker_epoch: int) -> bool:
    return image.broker_is_active(broker_id) and (
        broker_epoch in (-1, image.brokers[broker_id].epoch))
