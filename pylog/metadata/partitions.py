"""Decisions on the partitions of topics that exist: more of them, elections, reassignments.

Owns: nothing; no clock, no disk.
Called by: metadata.active_controller, under its lock; api.partitions for the list of reassignments.
Invariants: (1) a topic's new partitions are made together or not at all; (2) a leader comes from
  the in-sync replicas, or the eligible ones, unless an unclean election is asked for; (3) an
  unclean leader is marked as recovering; (4) records that change replicas name the directory of
  each, in the same order.
Source: KIP-195 (more partitions), KIP-460 (elections), KIP-455, KIP-860 (reassignments), KIP-704
  (recovering leaders), KIP-858 (directories), KIP-966 (eligible replicas); error codes as Kafka
  4.3's.
"""

from collections import Counter, namedtuple

from pylog.metadata import controller
from pylog.metadata.image import NO_LEADER, Image
from pylog.metadata.refusal import Refusal
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

PREFERRED, UNCLEAN = 0, 1
RECOVERING = 1

Outcome = namedtuple("Outcome", ("error", "message"), defaults=(ErrorCode.NONE, None))
Outcome.__doc__ = "What became of one part of a request."


def create_partitions(image: Image, topics, random, mutations=None):
    """Decides CreatePartitionsRequest.topics, in steps (metadata.slices). Returns
    (records, [(topic name, Outcome)]).

    mutations: as for controller.create_topics.
    """
    counts = Counter(topic.name for topic in topics)
    records: list = []
    results: dict[str, Outcome] = {}
    for topic in topics:
        yield
        if topic.name in results:
            continue
        try:
            if counts[topic.name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            made = yield from _more(image, topic, random, mutations)
            if len(records) + len(made) > controller.PARTITIONS_PER_REQUEST_MAX:
                raise Refusal(ErrorCode.POLICY_VIOLATION, "more than "
                              f"{controller.PARTITIONS_PER_REQUEST_MAX} partitions in one request")
        except Refusal as refusal:
            results[topic.name] = Outcome(refusal.error, refusal.message)
            continue
        # Keeps (1).
        records += made
        results[topic.name] = Outcome()
    return records, list(results.items())


def _more(image, wanted, random, mutations):
    topic = image.topics.get(wanted.name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    count = len(topic.partitions)
    if wanted.count == count:
        raise Refusal(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if wanted.count < count:
        raise Refusal(ErrorCode.INVALID_PARTITIONS,
                      f"The topic {wanted.name} currently has {count} partition(s); {wanted.count} "
                      "would not be an increase.")
    more, factor = wanted.count - count, len(topic.partitions[0].replicas)
    if wanted.assignments is not None and len(wanted.assignments) != more:
        raise controller.bad_assignment(
            f"Attempted to add {more} additional partition(s), but only "
            f"{len(wanted.assignments)} assignment(s) were specified.")
    if more > controller.PARTITIONS_PER_REQUEST_MAX:
        raise Refusal(ErrorCode.POLICY_VIOLATION,
                      f"more than {controller.PARTITIONS_PER_REQUEST_MAX} partitions at once")
    controller.charge(mutations, more)
    if wanted.assignments is None:
        assignment = _place(image, more, factor, random)
    else:
        assignment = [tuple(entry.broker_ids) for entry in wanted.assignments]
        for number, replicas in enumerate(assignment):
            yield
            controller.check_replicas(image, replicas, factor)
            if not any(image.broker_is_active(broker_id) for broker_id in replicas):
                raise controller.bad_assignment(
                    f"no broker of partition {count + number} is active")
    assert len(assignment) == more, (len(assignment), more)
    return (yield from controller.partition_records(image, topic.id, count, assignment))


def _place(image, count, factor, random) -> list:
    active = sum(1 for broker_id in image.brokers if image.broker_is_active(broker_id))
    if factor > active:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR,
                      f"replication factor {factor} needs as many active brokers: there "
                      f"are {active}")
    return controller.place(image, count, factor, random)


# ---- elections --------------------------------------------------------------------------------


def elect_leaders(image: Image, election: int, topics, lost=frozenset()):
    """Decides an election of leaders, in steps: PREFERRED or UNCLEAN.

    topics: [(name, partition indexes)], None for all. lost: (broker id, topic name, index) of
    replicas whose disk failed. Returns (records, [(topic name, [(index, Outcome)])]). Of all
    partitions, those that need no election are left out.
    """
    asked = topics
    if topics is None:
        asked = [(topic.name, range(len(topic.partitions))) for topic in image.topics.values()]
    records, results = [], []
    for name, indexes in asked:
        outcomes = []
        for index in indexes:
            yield
            try:
                record = _elected(image, name, index, election, lost)
            except Refusal as refusal:
                if topics is not None or refusal.error != ErrorCode.ELECTION_NOT_NEEDED:
                    outcomes.append((index, Outcome(refusal.error, refusal.message)))
                continue
            records.append(record)
            outcomes.append((index, Outcome()))
        results.append((name, outcomes))
    return records, results


def _elected(image, name, index, election, lost):
    def may_lead(broker_id: int) -> bool:
        return image.broker_is_active(broker_id) and (broker_id, name, index) not in lost

    topic = image.topics.get(name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    state = image.partition(name, index)
    if state is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    preferred = state.replicas[0]
    if state.leader == preferred if election == PREFERRED else state.leader != NO_LEADER:
        raise Refusal(ErrorCode.ELECTION_NOT_NEEDED,
                      "Leader election not needed for topic partition.")
    if election == PREFERRED:
        # Keeps (2).
        if preferred not in state.isr or not may_lead(preferred):
            raise Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                          "the preferred replica is not in sync, not active or without its disk")
        return messages.PartitionChangeRecord(
            partition_id=index, topic_id=topic.id, leader=preferred)
    # With an empty ISR the eligible replicas have all that was acknowledged (KIP-966).
    whole = state.isr or state.eligible_leader_replicas
    leader = next((broker_id for among in (whole, state.replicas) for broker_id in among
                   if may_lead(broker_id)), None)
    if leader is None:
        raise Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                      "no replica is active and has its disk")
    if leader in state.isr:
        return messages.PartitionChangeRecord(
            partition_id=index, topic_id=topic.id, leader=leader)
    return messages.PartitionChangeRecord(
        partition_id=index, topic_id=topic.id, leader=leader, isr=[leader],
        # Keeps (3).
        leader_recovery_state=-1 if leader in whole else RECOVERING,
        eligible_leader_replicas=[
            other for other in state.eligible_leader_replicas if other != leader
        ] if leader in state.eligible_leader_replicas else None,
        last_known_elr=[] if leader in whole else None)


def leave_offline(image: Image, broker_id: int, offline) -> list:
    """Records for replicas of a broker whose disk failed: another in-sync one leads, or none (2).

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


# ---- reassignments ----------------------------------------------------------------------------


def alter_reassignments(image: Image, topics, factor_may_change: bool):
    """Decides AlterPartitionReassignmentsRequest.topics.

    Returns (records, [(topic name, [(index, Outcome)])]).
    """
    records, results = [], []
    for wanted in topics:
        outcomes = []
        for partition in wanted.partitions:
            outcome = Outcome()
            try:
                records += _reassigned(image, wanted.name, partition, factor_may_change)
            except Refusal as refusal:
                outcome = Outcome(refusal.error, refusal.message)
            outcomes.append((partition.partition_index, outcome))
        results.append((wanted.name, outcomes))
    return records, results


def _reassigned(image, name, wanted, factor_may_change) -> list:
    topic, index = image.topics.get(name), wanted.partition_index
    state = image.partition(name, index)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                      f"Unable to find a topic named {name}.")
    if state is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                      f"Unable to find partition {name}:{index}.")
    if wanted.replicas is None:
        if not (state.adding_replicas or state.removing_replicas):
            raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        remaining = [broker_id for broker_id in state.replicas
                     if broker_id not in state.adding_replicas]
        return [messages.PartitionChangeRecord(
            partition_id=index, topic_id=topic.id, replicas=remaining, adding_replicas=[],
            removing_replicas=[], directories=_directories(image, state, remaining))]
    target = list(wanted.replicas)
    controller.check_replicas(image, target)
    if not factor_may_change and len(target) != len(state.replicas):
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR,
                      f"the replication factor may not change from {len(state.replicas)} to "
                      f"{len(target)}")
    adding = [broker_id for broker_id in target if broker_id not in state.replicas]
    removing = [broker_id for broker_id in state.replicas if broker_id not in target]
    merged = target + removing
    if merged == list(state.replicas) and not (adding or removing):
        return []
    return [messages.PartitionChangeRecord(
        partition_id=index, topic_id=topic.id, replicas=merged, adding_replicas=adding or None,
        removing_replicas=removing or None, directories=_directories(image, state, merged))]


def _directories(image: Image, state, replicas) -> list | None:
    """Keeps (4). None for a partition of a cluster that does not assign directories."""
    if not state.directories:
        return None
    # Earlier versions changed the replicas alone: the pairs are unknown then.
    known = dict(zip(state.replicas, state.directories)) if (
        len(state.directories) == len(state.replicas)) else {}
    return [known[broker_id] if broker_id in known else controller.directory_of(image, broker_id)
            for broker_id in replicas]


def reassignments(image: Image, topics):
    """Reassignments under way: [(topic name, [(index, Partition)])].

    topics: [(name, partition indexes)], None for all.
    """
    asked = topics
    if topics is None:
        asked = [(topic.name, range(len(topic.partitions))) for topic in image.topics.values()]
    found = []
    for name, indexes in asked:
        states = [(index, image.partition(name, index)) for index in indexes]
        moving = [(index, state) for index, state in states
                  if state is not None and (state.adding_replicas or state.removing_replicas)]
        if moving:
            found.append((name, moving))
    return found
