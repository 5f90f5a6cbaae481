"""Decisions on topics, the first records of a cluster, and producer ids.

Owns: nothing; no clock, no disk; randomness is passed in.
Invariants: the records of a decision apply to the image that it was made from; a topic is rejected
  with Kafka's error code, and the other topics of its request are still processed.
Source: KIP-4 (topics), KIP-516 (topic ids), KIP-599; error codes as seen on Kafka 4.4.
"""

from collections import namedtuple

from pylog.config import ConfigError
from pylog.config import internal_topics
from pylog.metadata.controller.partitions import (
    eligible_leader_replicas,
)
from pylog.metadata.controller.partitions import (
    replica_placement,
)
from pylog.metadata.image import snapshot
from pylog.metadata.image.feature_levels import FEATURES
from pylog.metadata.image.image import NO_LEADER, RESOURCE_TOPIC, Image
from pylog.metadata.image.uuids import random_id
from pylog.protocol import messages, topic_names
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

PARTITIONS_PER_REQUEST_MAX = 10_000
PRODUCER_IDS_PER_BLOCK = 1000
PRODUCER_ID_MAX = 2**63 - 1
TOPIC_NAME_CHARACTERS_MAX = 249
METADATA_TOPIC = "__cluster_metadata"
DIRECTORY_UNASSIGNED = (1).to_bytes(16, "big")
NO_TOPIC = "This server does not host this topic-partition."

TopicResult = namedtuple(
    "TopicResult", ("name", "error", "message", "topic_id", "partition_count", "replication_factor",
                    "configs"), defaults=(None, bytes(16), -1, -1, None))
TopicResult.__doc__ = """The result for one topic of a request; `configs` are its overrides."""

ProducerIds = namedtuple("ProducerIds", ("first", "count"))


def topic_name_fault(name: str) -> str | None:
    """Return why `name` is not a valid topic name, None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        return (f"Topic name is invalid: the length of '{name}' is longer than the max allowed "
                f"length {TOPIC_NAME_CHARACTERS_MAX}")
    if not topic_names.LEGAL.fullmatch(name):
        return (f"Topic name is invalid: '{name}' contains one or more characters other than "
                "ASCII alphanumerics, '.', '_' and '-'")
    return None


# ---- topics -------------------------------------------------------------------------------------


def create_topics(image: Image, request, settings, random, mutations=None):
    """Decide a CreateTopicsRequest, in steps (eventloop.slices). Returns (records, [TopicResult in
    the request's order]).

    settings: pylog.config.Settings. random: a random.Random. `validate_only` returns no records.
    mutations: the client's quota (client_quotas.Mutations), None without a limit.
    """
    if _exceeds_limits(request.topics, settings):
        text = "Excessively large number of partitions per request."
        results = {topic.name: TopicResult(topic.name, ErrorCode.POLICY_VIOLATION, text)
                   for topic in request.topics}
        return [], list(results.values())
    counts: dict[str, int] = {}
    for topic in request.topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    colliding = _CollidingNames(image)
    records, results = [], {}
    for topic in request.topics:
        yield
        if topic.name in results:
            continue
        try:
            if counts[topic.name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            made, result = yield from _create_topic(image, topic, settings, random, colliding)
            charge(mutations, result.partition_count)
        except Refusal as refusal:
            results[topic.name] = TopicResult(topic.name, refusal.error, refusal.message)
            continue
        records += made
        results[topic.name] = result
    return ([] if request.validate_only else records), list(results.values())


def charge(mutations, partitions: int) -> None:
    """Charge created or deleted partitions to the quota. Raises Refusal if it is exhausted."""
    if mutations is not None and not mutations.charge(partitions):
        raise Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED)


def _exceeds_limits(topics, settings) -> bool:
    total = 0
    for topic in topics:
        if topic.assignments:
            total += len(topic.assignments)
        elif topic.num_partitions > 0:
            total += topic.num_partitions
        else:
            total += settings["num.partitions"] if topic.num_partitions == -1 else 0
        if total > PARTITIONS_PER_REQUEST_MAX:
            return True
    return len(topics) > PARTITIONS_PER_REQUEST_MAX


class _CollidingNames:
    """Detects names that differ only in '.' and '_', which would share metric names."""

    def __init__(self, image: Image):
        self.image = image
        self.names: dict[str, str] | None = None

    def claim(self, name: str) -> None:
        """Add `name`. Raises Refusal if it collides with an existing name."""
        if "." not in name and "_" not in name:
            return
        if self.names is None:
            self.names = {other.replace(".", "_"): other for other in self.image.topics
                          if "." in other or "_" in other}
        other = self.names.setdefault(name.replace(".", "_"), name)
        if other != name:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION,
                          f"Topic '{name}' collides with existing topic: {other}")


def _create_topic(image, topic, settings, random, colliding):
    if topic.name == METADATA_TOPIC:
        raise Refusal(ErrorCode.INVALID_REQUEST,
                      f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    fault = topic_name_fault(topic.name)
    if fault is not None:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if topic.name in image.topics:
        raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    configs = _topic_configs(topic, settings)
    assignment = yield from _assignment(image, topic, settings, random)
    colliding.claim(topic.name)
    topic_id = random_id(random)
    while topic_id in image.topics_by_id:
        topic_id = random_id(random)
    records = [messages.TopicRecord(name=topic.name, topic_id=topic_id)]
    records += [messages.ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name=topic.name,
                                      name=name, value=value)
                for name, value in configs.items()]
    records += yield from partition_records(image, topic_id, 0, assignment)
    records += eligible_leader_replicas.cleared(image, records)
    return records, TopicResult(topic.name, ErrorCode.NONE, None, topic_id, len(assignment),
                                len(assignment[0]), configs)


def _topic_configs(topic, settings) -> dict:
    configs = {config.name: config.value for config in topic.configs}
    if topic.name in internal_topics.NAMES:
        # Committed group state must not expire, even if a client created the topic.
        configs.setdefault("cleanup.policy", "compact")
    missing = [name for name, value in configs.items() if value is None]
    if missing:
        raise Refusal(ErrorCode.INVALID_CONFIG,
                      f"Null value not supported for topic configs: {','.join(missing)}")
    try:
        settings.validate_topic_configs(configs)
    except ConfigError as error:
        raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from None
    return configs


def _assignment(image, topic, settings, random):
    """Return replica lists by partition, from the request or placed here."""
    if topic.assignments:
        return (yield from _manual_assignment(image, topic))
    factor, count = topic.replication_factor, topic.num_partitions
    if factor < -1 or factor == 0:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR,
                      "Replication factor must be larger than 0, or -1 to use the default value.")
    if count < -1 or count == 0:
        raise Refusal(ErrorCode.INVALID_PARTITIONS,
                      "Number of partitions was set to an invalid non-positive value.")
    count = settings["num.partitions"] if count == -1 else count
    factor = settings["default.replication.factor"] if factor == -1 else factor
    return replica_placement.place(image, count, factor, random)


def _manual_assignment(image, topic):
    for value, word in ((topic.replication_factor, "replication factor"),
                        (topic.num_partitions, "numPartitions")):
        if value != -1:
            raise Refusal(ErrorCode.INVALID_REQUEST, "A manual partition assignment was "
                          f"specified, but {word} was not set to -1.")
    replicas_of = {}
    for entry in topic.assignments:
        yield
        replicas = tuple(entry.broker_ids)
        if entry.partition_index in replicas_of:
            raise bad_assignment("Found multiple manual partition assignments for partition "
                                 f"{entry.partition_index}")
        check_replicas(image, replicas)
        if not any(image.broker_is_active(broker_id) for broker_id in replicas):
            raise bad_assignment(f"no broker of partition {entry.partition_index} is active")
        replicas_of[entry.partition_index] = replicas
    if sorted(replicas_of) != list(range(len(replicas_of))):
        raise bad_assignment("partitions should be a consecutive 0-based integer sequence")
    if len({len(replicas) for replicas in replicas_of.values()}) > 1:
        raise bad_assignment("all partitions need the same number of replicas")
    return [replicas_of[index] for index in range(len(replicas_of))]


def check_replicas(image: Image, replicas, factor: int | None = None) -> None:
    """Raise Refusal if these replicas are invalid for a partition."""
    prefix = "The manual partition assignment includes"
    if not replicas:
        raise bad_assignment(f"{prefix} an empty replica list.")
    seen = set()
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            raise bad_assignment(f"{prefix} broker {broker_id}, but no such broker is registered.")
        if broker_id in seen:
            raise bad_assignment(f"{prefix} the broker {broker_id} more than once.")
        seen.add(broker_id)
    if factor is not None and len(replicas) != factor:
        raise bad_assignment(f"{prefix} a partition with {len(replicas)} replica(s), but this is "
                             f"not consistent with previous partitions, which have {factor} "
                             "replica(s).")


def bad_assignment(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def partition_records(image: Image, topic_id: bytes, first: int, assignment: list):
    """Return the records of new partitions from index `first` on, in steps. assignment: replica
    lists by partition.
    """
    records = []
    for index, replicas in enumerate(assignment, first):
        yield
        records.append(partition_record(image, topic_id, index, replicas))
    return records


def partition_record(image: Image, topic_id: bytes, index: int, replicas):
    """Return the record of a new partition; its first active replica leads."""
    in_sync = [broker_id for broker_id in replicas if image.broker_is_active(broker_id)]
    return messages.PartitionRecord(
        partition_id=index, topic_id=topic_id, replicas=list(replicas), isr=in_sync,
        removing_replicas=[], adding_replicas=[], leader=in_sync[0], leader_epoch=0,
        partition_epoch=0,
        directories=[directory_of(image, broker_id) for broker_id in replicas])


def directory_of(image: Image, broker_id: int) -> bytes:
    """Return the directory id for a broker's new replica, DIRECTORY_UNASSIGNED if the broker
    chooses.
    """
    broker = image.brokers.get(broker_id)
    # A broker with several directories chooses one itself (KIP-858).
    return broker.directories[0] if broker is not None and len(broker.directories) == 1 \
        else DIRECTORY_UNASSIGNED


def delete_topics(image: Image, topics, settings, mutations=None):
    """Decide which topics to delete, in steps. topics: [(name or None, 16-byte id)], exactly one
    given.

    Returns (records, [TopicResult in order]); the result of a deleted topic has name and id.
    """
    records: list = []
    results: list[TopicResult] = []
    seen: dict[str | bytes, int] = {}
    for name, topic_id in topics:
        key = name if name is not None else topic_id
        seen[key] = seen.get(key, 0) + 1
    removed = set()
    for name, topic_id in topics:
        yield
        key = name if name is not None else topic_id
        try:
            if seen[key] == 0:
                continue  # A repeated topic gets one result.
            topic = _topic_to_delete(image, name, topic_id, seen[key], settings)
            if topic.id in removed:
                raise Refusal(ErrorCode.INVALID_REQUEST,
                               "the request names the topic both by name and by id")
            name, topic_id = topic.name, topic.id
            charge(mutations, len(topic.partitions))
        except Refusal as refusal:
            results.append(TopicResult(name, refusal.error, refusal.message, topic_id))
            seen[key] = 0
            continue
        removed.add(topic.id)
        records.append(messages.RemoveTopicRecord(topic_id=topic.id))
        results.append(TopicResult(topic.name, ErrorCode.NONE, None, topic.id,
                                   len(topic.partitions)))
    return records, results


def _topic_to_delete(image, name, topic_id, times, settings):
    if not settings["delete.topic.enable"]:
        raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    if name is not None and topic_id != bytes(16):
        raise Refusal(ErrorCode.INVALID_REQUEST,
                      "You may not specify both topic name and topic id.")
    if name is None and topic_id == bytes(16):
        raise Refusal(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if times > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    if name is not None:
        topic, refusal = image.topics.get(name), Refusal(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC)
    else:
        topic, refusal = image.topics_by_id.get(topic_id), Refusal(
            ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if topic is None:
        raise refusal
    return topic


# ---- brokers, features, producer ids ------------------------------------------------------------


def bootstrap(image: Image):
    """Return the first records of an empty metadata log.

    If Kafka's tool formatted the directory, the image has what the tool wrote: levels, users. These
    records are written to the log too, because a follower reads the log from its start.
    """
    assert image.offset == -1, image.offset
    return snapshot.records_of(image) if image.features else [
        messages.FeatureLevelRecord(name=name, feature_level=high)
        for name, (_, high) in FEATURES.items()]


def bootstrap_cluster(image: Image, settings) -> list:
    """Return bootstrap() for a cluster of several brokers: with ELR (KIP-966), which needs one
    min.insync.replicas for all.
    """
    records = bootstrap(image)
    if not image.features:
        records.append(messages.FeatureLevelRecord(
            name=eligible_leader_replicas.ELR_FEATURE, feature_level=1))
    if image.features.get(eligible_leader_replicas.ELR_FEATURE, 0) or not image.features:
        records += eligible_leader_replicas.single_min_isr(image, settings)
    return records


def register_broker(image: Image, broker_id, endpoints, rack, directories, random):
    """Return the records of a broker's start: registered with the offset as epoch, fenced at first.

    endpoints: [(name, host, port, security protocol's number)]. The broker epoch equals the
    record's future offset, because an append fails if the log's end has moved.
    """
    new = messages.RegisterBrokerRecord
    return [new(
        broker_id=broker_id, incarnation_id=random_id(random), broker_epoch=image.offset + 1,
        end_points=[new.BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
                    for name, host, port, protocol in endpoints],
        features=[new.BrokerFeature(
            name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in FEATURES.items()],
        rack=rack, fenced=True, in_controlled_shutdown=False, log_dirs=sorted(directories))]


def unfence_broker(image: Image, broker_id: int):
    """Return the record that unfences a broker, [] if it is active already."""
    broker = image.brokers[broker_id]
    if not broker.fenced and not broker.in_controlled_shutdown:
        return []
    return [messages.BrokerRegistrationChangeRecord(
        broker_id=broker_id, broker_epoch=broker.epoch, fenced=-1)]


def elect_after_restart(image: Image, broker_id: int, clean: bool):
    """Return the records that restore a broker's leadership after its start.

    The broker leads again the partitions that lost their leader when it stopped (Kafka's brokers
    fence themselves at a stop), if it is in the ISR or, with an empty ISR, in the ELR (KIP-966).
    After an unclean stop, the partitions that it led get a new leader epoch: a power loss may have
    taken appended records, so their offsets could be used twice, and the epoch shows consumers
    where the logs diverge (KIP-320).
    """
    new = messages.PartitionChangeRecord
    records = []
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            if state.leader == broker_id and not clean:
                records.append(new(partition_id=index, topic_id=topic.id, leader=broker_id))
            elif state.leader == NO_LEADER and broker_id in (
                    state.isr or state.eligible_leader_replicas):
                records.append(new(
                    partition_id=index, topic_id=topic.id, leader=broker_id,
                    isr=list(state.isr) or [broker_id], eligible_leader_replicas=[
                        other for other in state.eligible_leader_replicas if other != broker_id],
                    last_known_elr=[]))
    return records


def reduce_to_single_broker(image: Image, broker_id: int) -> list:
    """Return the records for the one broker that continues a cluster by itself.

    It leads every partition that it has in sync. Partitions that it lacks have no leader, and their
    last ISR is kept. It removes all other brokers from the ELRs, so that nothing waits for them.
    """
    records = [messages.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=1)
        for broker in image.brokers.values() if broker.id != broker_id and not broker.fenced]
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            changes = _left_alone(state, broker_id)
            if changes:
                records.append(messages.PartitionChangeRecord(
                    partition_id=index, topic_id=topic.id, **changes))
    return records


def _left_alone(state, broker_id: int) -> dict:
    if broker_id not in state.isr:
        return {} if state.leader in (broker_id, NO_LEADER) else {"leader": NO_LEADER}
    changes: dict = {}
    if len(state.isr) > 1:
        changes["isr"] = [broker_id]
    if state.leader != broker_id:
        changes["leader"] = broker_id
    for known in ("eligible_leader_replicas", "last_known_elr"):
        if getattr(state, known):
            changes[known] = []
    return changes


def allocate_producer_ids(image: Image, broker_id: int):
    """Allocate a block of producer ids to a broker. Returns (records, ProducerIds)."""
    first = image.next_producer_id
    if first > PRODUCER_ID_MAX - PRODUCER_IDS_PER_BLOCK:
        raise OverflowError("all producer ids are used up")
    record = messages.ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=image.brokers[broker_id].epoch,
        next_producer_id=first + PRODUCER_IDS_PER_BLOCK)
    return [record], ProducerIds(first, PRODUCER_IDS_PER_BLOCK)
