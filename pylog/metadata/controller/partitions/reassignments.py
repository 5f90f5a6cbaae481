"""Starts, cancels and lists partition reassignments; partition_change completes them.

Owns: nothing; no clock, no disk.
Invariants: a partition lists its adding and removing replicas while it is reassigned; a cancelled
  reassignment restores the original replicas, and leaves the ISR empty only if it was empty.
Source: KIP-455, KIP-860; Kafka's PartitionReassignmentReplicas and PartitionReassignmentRevert.
"""

from pylog.metadata.controller.partitions import topics
from pylog.metadata.controller.partitions.partition_change import UNCLEAN, PartitionChange, Rules
from pylog.metadata.controller.partitions.partitions import Outcome
from pylog.metadata.image.image import Image
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode


def alter(rules: Rules, topics, factor_may_change: bool):
    """Decide AlterPartitionReassignmentsRequest.topics.

    Returns (records, [(topic name, [(index, Outcome)])]).
    """
    records, results = [], []
    for wanted in topics:
        outcomes = []
        for partition in wanted.partitions:
            outcome = Outcome()
            try:
                record = _altered(rules, wanted.name, partition, factor_may_change)
            except Refusal as refusal:
                outcome = Outcome(refusal.error, refusal.message)
            else:
                if record is not None:
                    records.append(record)
            outcomes.append((partition.partition_index, outcome))
        results.append((wanted.name, outcomes))
    return records, results


def _altered(rules, name, wanted, factor_may_change):
    topic, index = rules.image.topics.get(name), wanted.partition_index
    state = rules.image.partition(name, index)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                      f"Unable to find a topic named {name}.")
    if state is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                      f"Unable to find partition {name}:{index}.")
    if wanted.replicas is None:
        return _cancelled(rules, topic, index, state)
    target = list(wanted.replicas)
    topics.check_replicas(rules.image, target)
    factor = len(state.replicas) - len(state.adding_replicas)
    if not factor_may_change and len(target) != factor:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR,
                      f"The replication factor is changed from {factor} to {len(target)}")
    # List the adding and removing replicas. A replica that an earlier reassignment was adding is
    # not an original one: it stays an adding replica or is removed again.
    before = set(state.replicas) - set(state.adding_replicas)
    change = PartitionChange(rules, topic, index)
    change.removing = [id_ for id_ in sorted(state.replicas) if id_ not in target]
    change.adding = [id_ for id_ in sorted(target) if id_ not in before]
    change.replicas = target + change.removing
    return change.record()


def _cancelled(rules, topic, index, state):
    if not (state.adding_replicas or state.removing_replicas):
        raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    change = PartitionChange(rules, topic, index)
    change.replicas = [id_ for id_ in state.replicas if id_ not in state.adding_replicas]
    change.isr = [id_ for id_ in state.isr if id_ not in state.adding_replicas]
    change.adding, change.removing = [], []
    known = state.isr or state.eligible_leader_replicas or state.last_known_elr
    if known and not set(known) & set(change.replicas):
        # No remaining replica was in sync: the leader elected here may lack records.
        if not rules.allows_unclean(topic.name):
            raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                          f"Unable to revert partition assignment for {topic.name}:{index} because "
                          "it would require an unclean leader election.")
        # An in-sync replica that cannot lead now would lead later without being marked as
        # recovering.
        if state.isr and not any(change.can_lead(id_) for id_ in change.replicas):
            raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                          f"Unable to revert partition assignment for {topic.name}:{index} because "
                          f"none of the replicas {change.replicas} can lead now.")
        change.isr = []
        change.election = UNCLEAN
    return change.record()


def under_way(image: Image, topics):
    """Return reassignments in progress: [(topic name, [(index, Partition)])].

    topics: [(name, partition indexes)], None for all.
    """
    requested = topics
    if topics is None:
        requested = [(topic.name, range(len(topic.partitions))) for topic in image.topics.values()]
    found = []
    for name, indexes in requested:
        states = [(index, image.partition(name, index)) for index in indexes]
        moving = [(index, state) for index, state in states
                  if state is not None and (state.adding_replicas or state.removing_replicas)]
        if moving:
            found.append((name, moving))
    return found
