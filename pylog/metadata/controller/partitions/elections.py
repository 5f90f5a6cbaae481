"""Leader elections: requested ones, and those after a broker's state changes.

Owns: nothing; no clock, no disk.
Invariants: a leader comes from the ISR or the ELR, unless an unclean election is requested or
  allowed; every change goes through partition_change.
Source: KIP-460 (elections), KIP-966 (eligible leader replicas), KIP-112 (failed disks); Kafka's
  ReplicationControlManager; error codes as Kafka 4.4's.
"""

from pylog.metadata.controller.partitions.partition_change import (
    PREFERRED,
    UNCLEAN,
    PartitionChange,
    Rules,
)
from pylog.metadata.controller.partitions.partitions import Outcome
from pylog.metadata.image.image import NO_LEADER, Image
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

ELECTIONS_MAX = 1000  # preferred leaders per run


def elect_leaders(rules: Rules, election: int, topics):
    """Decide an election of leaders, in steps: PREFERRED or UNCLEAN.

    topics: [(name, partition indexes)], None for all. Returns (records, [(topic name, [(index,
    Outcome)])]). With topics=None, partitions that need no election are omitted.
    """
    requested = topics
    if topics is None:
        requested = [(topic.name, range(len(topic.partitions)))
                 for topic in rules.image.topics.values()]
    records, results = [], []
    for name, indexes in requested:
        outcomes = []
        for index in indexes:
            yield
            try:
                record = _elected(rules, name, index, election)
            except Refusal as refusal:
                if topics is not None or refusal.error != ErrorCode.ELECTION_NOT_NEEDED:
                    outcomes.append((index, Outcome(refusal.error, refusal.message)))
                continue
            records.append(record)
            outcomes.append((index, Outcome()))
        results.append((name, outcomes))
    return records, results


def _elected(rules, name, index, election):
    topic = rules.image.topics.get(name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    state = rules.image.partition(name, index)
    if state is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    preferred = state.replicas[0]
    if state.leader == preferred if election == PREFERRED else state.leader != NO_LEADER:
        raise Refusal(ErrorCode.ELECTION_NOT_NEEDED,
                      "Leader election not needed for topic partition.")
    change = PartitionChange(rules, topic, index)
    change.election = election
    record = change.record()
    if record is None or record.leader < 0 or election == PREFERRED and record.leader != preferred:
        if election == PREFERRED:
            raise Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                          "The preferred leader was not available.")
        raise Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                      "no replica is active with an online log directory")
    return record


# ---- changes of broker state --------------------------------------------------------------------


def in_sync_on(image: Image, broker_id: int):
    """Yield (topic, index) of the partitions with the broker in their ISR, and None as a pause."""
    for topic in image.topics.values():
        yield None
        for index, state in enumerate(topic.partitions):
            if broker_id in state.isr:
                yield topic, index


def eligible_on(image: Image, broker_id: int):
    """Yield like in_sync_on, for the eligible leader replicas."""
    for topic in image.topics.values():
        yield None
        for index, state in enumerate(topic.partitions):
            if broker_id in state.eligible_leader_replicas:
                yield topic, index


def without_leader(image: Image):
    """Yield like in_sync_on, for the partitions without a leader."""
    for topic in image.topics.values():
        yield None
        for index, state in enumerate(topic.partitions):
            if state.leader == NO_LEADER:
                yield topic, index


def leads_any(image: Image, broker_id: int) -> bool:
    """Return True if the broker leads a partition."""
    return any(state.leader == broker_id for topic in image.topics.values()
               for state in topic.partitions)


def moved(rules: Rules, partitions, *, leaving: int = NO_LEADER, coming: int = NO_LEADER,
          crashed: int = NO_LEADER):
    """Return the leader and ISR records, in steps, for `partitions`: (topic, index), None for a
    pause.

    leaving: a broker that leaves ISRs and leads nothing. coming: a broker that may lead although it
    is still fenced in the image. crashed: a broker that leaves ISRs and ELRs because it may lack
    records.
    """
    def may_lead(broker_id: int) -> bool:
        return broker_id not in (leaving, crashed) and (
            broker_id == coming or rules.image.broker_is_active(broker_id))

    records = []
    for found in partitions:
        if found is None:
            yield
            continue
        topic, index = found
        change = PartitionChange(rules, topic, index, may_lead)
        if rules.allows_unclean(topic.name):
            change.election = UNCLEAN
        if crashed != NO_LEADER:
            change.crashed = [crashed]
        change.isr = [id_ for id_ in change.isr if id_ not in (leaving, crashed)]
        record = change.record()
        if record is not None:
            records.append(record)
            if len(records) % 100 == 0:
                yield
    return records


def balanced(rules: Rules):
    """Return the records that elect preferred leaders, in steps; ELECTIONS_MAX at most."""
    records: list = []
    for topic in rules.image.topics.values():
        yield
        for index, state in enumerate(topic.partitions):
            if state.leader == state.replicas[0] or state.leader == NO_LEADER:
                continue
            change = PartitionChange(rules, topic, index)
            change.election = PREFERRED
            record = change.record()
            if record is not None:
                records.append(record)
                if len(records) >= ELECTIONS_MAX:
                    return records
    return records


def unclean(rules: Rules):
    """Return the records of unclean elections for leaderless partitions of topics that allow them,
    in steps.
    """
    records = yield from moved(rules, (
        found for found in without_leader(rules.image)
        if found is None or rules.allows_unclean(found[0].name)))
    return records


def leave_offline(image: Image, broker_id: int, offline) -> list:
    """Return the records that move leadership off a broker's failed disk: to another in-sync
    replica, or to none.

    offline: [(topic name, partition index)].
    """
    records = []
    for name, index in offline:
        state = image.partition(name, index)
        if state is None or state.leader != broker_id:
            continue
        left = [other for other in state.isr
                if other != broker_id and image.broker_is_active(other)]
        records.append(messages.PartitionChangeRecord(
            partition_id=index, topic_id=image.topics[name].id,
            leader=left[0] if left else NO_LEADER, isr=left or None))
    return records
