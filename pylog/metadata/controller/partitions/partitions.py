"""Adds partitions to existing topics.

Owns: nothing; no clock, no disk.
Invariants: all new partitions of a topic are created, or none.
Source: KIP-195; error codes as Kafka 4.4's.
"""

from collections import Counter, namedtuple

from pylog.metadata.controller.partitions import replica_placement
from pylog.metadata.controller.partitions import topics
from pylog.metadata.image.image import Image
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

Outcome = namedtuple("Outcome", ("error", "message"), defaults=(ErrorCode.NONE, None))
Outcome.__doc__ = "The result for one part of a request."


def create_partitions(image: Image, wanted_topics, random, mutations=None):
    """Decide CreatePartitionsRequest.topics, in steps (eventloop.slices). Returns (records, [(topic
    name, Outcome)]).

    mutations: as for topics.create_topics.
    """
    counts = Counter(topic.name for topic in wanted_topics)
    records: list = []
    results: dict[str, Outcome] = {}
    for topic in wanted_topics:
        yield
        if topic.name in results:
            continue
        try:
            if counts[topic.name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            made = yield from _more(image, topic, random, mutations)
            if len(records) + len(made) > topics.PARTITIONS_PER_REQUEST_MAX:
                raise Refusal(ErrorCode.POLICY_VIOLATION, "more than "
                              f"{topics.PARTITIONS_PER_REQUEST_MAX} partitions in one request")
        except Refusal as refusal:
            results[topic.name] = Outcome(refusal.error, refusal.message)
            continue
        # All new partitions of a topic are created, or none.
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
        raise topics.bad_assignment(
            f"Attempted to add {more} additional partition(s), but only "
            f"{len(wanted.assignments)} assignment(s) were specified.")
    if more > topics.PARTITIONS_PER_REQUEST_MAX:
        raise Refusal(ErrorCode.POLICY_VIOLATION,
                      f"more than {topics.PARTITIONS_PER_REQUEST_MAX} partitions at once")
    topics.charge(mutations, more)
    if wanted.assignments is None:
        assignment = replica_placement.place(image, more, factor, random)
    else:
        assignment = [tuple(entry.broker_ids) for entry in wanted.assignments]
        for number, replicas in enumerate(assignment):
            yield
            topics.check_replicas(image, replicas, factor)
            if not any(image.broker_is_active(broker_id) for broker_id in replicas):
                raise topics.bad_assignment(
                    f"no broker of partition {count + number} is active")
    assert len(assignment) == more, (len(assignment), more)
    return (yield from topics.partition_records(image, topic.id, count, assignment))
