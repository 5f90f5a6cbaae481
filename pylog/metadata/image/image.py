"""The cluster's state as an immutable value: the result of the metadata log's records.

Owns: nothing outside memory.
Invariants: an image never changes: `apply` copies the dictionaries that it changes and shares the
  rest; partition ids of a topic are 0..n-1 without gaps; `topics` and `topics_by_id` contain the
  same Topic objects; equal partition states share one object, so an idle partition costs one
  pointer; a Delta lists everything that differs between its two images.
Source: KIP-631 (records and their meaning), KIP-966 (eligible leader replicas).
"""

from collections import namedtuple

from pylog.config import client_quotas
from pylog.config import internal_topics

RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4
ACCESS_RULE, SCRAM_CREDENTIAL, DELEGATION_TOKEN = (
    "AccessControlEntryRecord", "UserScramCredentialRecord", "DelegationTokenRecord")
# Reserved directory ids (Kafka's DirectoryId).
MIGRATING, UNASSIGNED, LOST = (number.to_bytes(16, "big") for number in range(3))
NO_LEADER = -1
NO_LEADER_CHANGE = -2
STATE_POOL_MAX = 4096


class MetadataError(Exception):
    """A metadata record contradicts the image or is of an unknown kind."""


Partition = namedtuple("Partition", (
    "replicas", "isr", "leader", "leader_epoch", "partition_epoch", "leader_recovery_state",
    "removing_replicas", "adding_replicas", "eligible_leader_replicas", "last_known_elr",
    "directories"))
Partition.__doc__ = "One partition's state; replica lists are tuples of broker ids."

Topic = namedtuple("Topic", ("name", "id", "partitions"))
Topic.__doc__ = "A topic: its name, its 16-byte id and its Partition states by partition index."

Endpoint = namedtuple("Endpoint", ("name", "host", "port", "security_protocol"))

Broker = namedtuple("Broker", (
    "id", "epoch", "incarnation_id", "endpoints", "features", "rack", "fenced",
    "in_controlled_shutdown", "directories", "cordoned"), defaults=(None,))
Broker.__doc__ = """A registered broker; `epoch` is the offset of its registration.

cordoned: ids of directories that get no new replicas; None: not reported yet.
"""


Delta = namedtuple("Delta", (
    "before", "after", "topic_ids", "configs", "client_quotas", "security"))
Delta.__doc__ = """The changes of a range of records: two images, and the keys that may differ.

topic_ids: of topics that were created, deleted or have changed partitions. configs: (resource type,
name). client_quotas: True if any of them changed. security: keys of Image.security.
"""


class Image:
    """Cluster state after every record up to and including `offset`, which has `epoch`."""

    __slots__ = ("topics", "topics_by_id", "configs", "brokers", "features", "next_producer_id",
                 "offset", "epoch", "states", "client_quotas", "security", "rules")

    def __init__(self, topics=None, topics_by_id=None, configs=None, brokers=None, features=None,
                 next_producer_id=0, offset=-1, epoch=-1, states=None, client_quotas=None,
                 security=None, rules=None):
        self.topics = topics if topics is not None else {}
        self.topics_by_id = topics_by_id if topics_by_id is not None else {}
        self.configs = configs if configs is not None else {}
        self.brokers = brokers if brokers is not None else {}
        self.features = features if features is not None else {}
        self.next_producer_id = next_producer_id
        self.offset = offset
        self.epoch = epoch
        # Pool of shared partition states, passed on from image to image; not part of the state.
        self.states = states if states is not None else {}
        # pylog.config.client_quotas.entity -> {quota: value}.
        self.client_quotas = client_quotas if client_quotas is not None else {}
        # (record's name, its identifying fields) -> the record: ACLs and credentials.
        self.security = security if security is not None else {}
        # ACL fields -> the ids of its records, normally one.
        self.rules = rules if rules is not None else _rules(self.security)

    def topic_config(self, name: str) -> dict:
        """Return a topic's overrides: {setting name: text}, empty without any."""
        return self.configs.get((RESOURCE_TOPIC, name), {})

    def partition(self, topic_name: str, index: int):
        """Return the Partition, None if the topic or index does not exist."""
        topic = self.topics.get(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def takes_replicas(self, broker_id: int) -> bool:
        """Return False if every log directory of a registered broker is cordoned (KIP-1066)."""
        broker = self.brokers[broker_id]
        return not broker.cordoned or not set(broker.directories) <= set(broker.cordoned)

    def broker_is_active(self, broker_id: int) -> bool:
        """Return True if the broker may lead: registered, unfenced, not in controlled shutdown."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown

    def __eq__(self, other):
        if not isinstance(other, Image):
            return NotImplemented
        return all(getattr(self, field) == getattr(other, field)
                   for field in self.__slots__ if field != "states")

    __hash__ = None  # type: ignore[assignment]  # Images are compared by value.


def is_internal(topic_name: str) -> bool:
    """Return True for topics in which brokers store their own state."""
    return topic_name in internal_topics.NAMES


def apply(image: Image, records, offset: int, epoch: int) -> Image:
    """Return the image after the records; arguments and errors as for advance()."""
    return advance(image, records, offset, epoch).after


def advance(image: Image, records, offset: int, epoch: int) -> Delta:
    """Return the Delta of the records, whose last one has `offset`.

    records: messages of pylog.protocol.messages (Kafka's metadata records), in log order. Raises
    MetadataError if a record contradicts the image or is of an unknown kind.
    """
    fold = _Fold(image)
    for record in records:
        kind = type(record).__name__
        step = _STEPS.get(kind)
        if step is None:
            raise MetadataError(f"metadata record {kind} is unknown to this version")
        step(fold, record)
    return fold.finish(offset, epoch)


def changed(old: Partition, record) -> Partition:
    """Return a partition's state after a PartitionChangeRecord."""
    change = {"partition_epoch": old.partition_epoch + 1}
    for field in ("isr", "replicas", "removing_replicas", "adding_replicas", "directories",
                  "eligible_leader_replicas", "last_known_elr"):
        value = getattr(record, field)
        if value is not None:
            change[field] = tuple(value)
    if record.leader != NO_LEADER_CHANGE:
        change["leader"] = record.leader
        change["leader_epoch"] = old.leader_epoch + 1
    if record.leader_recovery_state != -1:
        change["leader_recovery_state"] = record.leader_recovery_state
    return old._replace(**change)


def difference(before: Image, after: Image) -> Delta:
    """Return the Delta between two images that were built independently."""
    topics, configs = (before.topics_by_id, after.topics_by_id), (before.configs, after.configs)
    return Delta(
        before, after,
        frozenset(id_ for id_ in topics[0].keys() | topics[1].keys()
                  if topics[0].get(id_) != topics[1].get(id_)),
        frozenset(key for key in configs[0].keys() | configs[1].keys()
                  if configs[0].get(key) != configs[1].get(key)),
        before.client_quotas != after.client_quotas,
        frozenset(key for key in before.security.keys() | after.security.keys()
                  if before.security.get(key) != after.security.get(key)))


def is_known(kind: str) -> bool:
    """Return True if this version supports metadata records of that name."""
    return kind in _STEPS or kind in _FRAMES


class _Fold:
    """Working state of one `apply`: copies dictionaries on their first write."""

    __slots__ = ("image", "topics", "topics_by_id", "configs", "brokers", "features",
                 "next_producer_id", "states", "client_quotas", "security", "rules",
                 "partitions", "topic_ids", "config_keys", "security_keys")

    def __init__(self, image: Image):
        self.image = image
        self.topics = image.topics
        self.topics_by_id = image.topics_by_id
        self.configs = image.configs
        self.brokers = image.brokers
        self.features = image.features
        self.next_producer_id = image.next_producer_id
        self.states = image.states
        self.client_quotas = image.client_quotas
        self.security = image.security
        self.rules = image.rules
        # topic id -> list of Partition: changed topics
        self.partitions: dict[bytes, list[Partition]] = {}
        self.topic_ids: set[bytes] = set()
        self.config_keys: set[tuple[int, str]] = set()
        self.security_keys: set[tuple] = set()

    def own(self, field: str) -> dict:
        """Return the named dictionary, copied on the first call."""
        current = getattr(self, field)
        if current is getattr(self.image, field):
            current = dict(current)
            setattr(self, field, current)
        return current

    def partitions_of(self, topic_id: bytes) -> list:
        """Return the partition states of a topic as a mutable list."""
        states = self.partitions.get(topic_id)
        if states is None:
            topic = self.topics_by_id.get(topic_id)
            if topic is None:
                raise MetadataError(f"a record names the unknown topic id {topic_id.hex()}")
            states = self.partitions[topic_id] = list(topic.partitions)
            self.topic_ids.add(topic_id)
        return states

    def shared(self, state: Partition) -> Partition:
        """Return the pooled object of a state; equal states share one."""
        states = self.states
        found = states.get(state)
        if found is not None:
            return found
        if len(states) >= STATE_POOL_MAX:
            states.clear()
        states[state] = state
        return state

    def finish(self, offset: int, epoch: int) -> Delta:
        if self.partitions:
            topics, topics_by_id = self.own("topics"), self.own("topics_by_id")
            for topic_id, states in self.partitions.items():
                topic = topics_by_id[topic_id]._replace(partitions=tuple(states))
                topics[topic.name] = topics_by_id[topic_id] = topic
        after = Image(self.topics, self.topics_by_id, self.configs, self.brokers, self.features,
                      self.next_producer_id, offset, epoch, self.states, self.client_quotas,
                      self.security, self.rules)
        assert len(self.topics) == len(self.topics_by_id), offset  # same topics
        assert offset >= self.image.offset, (offset, self.image.offset)
        # The delta must list every difference.
        return Delta(self.image, after, frozenset(self.topic_ids), frozenset(self.config_keys),
                     self.client_quotas is not self.image.client_quotas,
                     frozenset(self.security_keys))


def _topic(fold: _Fold, record) -> None:
    if record.name in fold.topics:
        raise MetadataError(f"topic {record.name!r} is created twice")
    topic = Topic(record.name, bytes(record.topic_id), ())
    if topic.id in fold.topics_by_id:
        raise MetadataError(f"topic id {topic.id.hex()} is assigned twice")
    fold.own("topics")[topic.name] = topic
    fold.own("topics_by_id")[topic.id] = topic
    fold.topic_ids.add(topic.id)


def _partition(fold: _Fold, record) -> None:
    states = fold.partitions_of(bytes(record.topic_id))
    state = fold.shared(Partition(
        tuple(record.replicas), tuple(record.isr), record.leader, record.leader_epoch,
        record.partition_epoch, record.leader_recovery_state, tuple(record.removing_replicas),
        tuple(record.adding_replicas), tuple(record.eligible_leader_replicas or ()),
        tuple(record.last_known_elr or ()), tuple(record.directories or ())))
    index = record.partition_id
    if not 0 <= index <= len(states):
        raise MetadataError(f"partition {index} follows {len(states)} partitions")
    if index == len(states):
        states.append(state)
    else:
        states[index] = state


def _partition_change(fold: _Fold, record) -> None:
    states = fold.partitions_of(bytes(record.topic_id))
    index = record.partition_id
    if not 0 <= index < len(states):
        raise MetadataError(f"a change names partition {index} of {len(states)}")
    states[index] = fold.shared(changed(states[index], record))


def _remove_topic(fold: _Fold, record) -> None:
    topic = fold.own("topics_by_id").pop(bytes(record.topic_id), None)
    if topic is None:
        raise MetadataError(f"removal of the unknown topic id {bytes(record.topic_id).hex()}")
    del fold.own("topics")[topic.name]
    fold.partitions.pop(topic.id, None)
    fold.topic_ids.add(topic.id)
    if (RESOURCE_TOPIC, topic.name) in fold.configs:
        del fold.own("configs")[(RESOURCE_TOPIC, topic.name)]


def _config(fold: _Fold, record) -> None:
    key = (record.resource_type, record.resource_name)
    fold.config_keys.add(key)
    values = dict(fold.configs.get(key, {}))
    if record.value is None:
        values.pop(record.name, None)
    else:
        values[record.name] = record.value
    if values:
        fold.own("configs")[key] = values
    elif key in fold.configs:
        del fold.own("configs")[key]


def _client_quota(fold: _Fold, record) -> None:
    entity = client_quotas.entity((part.entity_type, part.entity_name) for part in record.entity)
    values = dict(fold.client_quotas.get(entity, {}))
    if record.remove:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value
    if values:
        fold.own("client_quotas")[entity] = values
    else:
        fold.own("client_quotas").pop(entity, None)


def _register_broker(fold: _Fold, record) -> None:
    fold.own("brokers")[record.broker_id] = Broker(
        record.broker_id, record.broker_epoch, bytes(record.incarnation_id),
        tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
        tuple((f.name, f.min_supported_version, f.max_supported_version) for f in record.features),
        record.rack, record.fenced, record.in_controlled_shutdown,
        tuple(bytes(directory) for directory in record.log_dirs or ()),
        _cordoned(record))


def _cordoned(record) -> tuple | None:
    named = record.cordoned_log_dirs
    return None if named is None else tuple(bytes(directory) for directory in named)


def _unregister_broker(fold: _Fold, record) -> None:
    if fold.own("brokers").pop(record.broker_id, None) is None:
        raise MetadataError(f"broker {record.broker_id} is unregistered but was never registered")


def _broker_change(fold: _Fold, record) -> None:
    broker = _known_broker(fold, record.broker_id, record.broker_epoch)
    change = {}
    if record.fenced:                     # -1 unfences, 1 fences, 0 leaves it
        change["fenced"] = record.fenced > 0
    if record.in_controlled_shutdown:
        change["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
    if record.log_dirs:
        change["directories"] = tuple(bytes(directory) for directory in record.log_dirs)
    if record.cordoned_log_dirs is not None:
        change["cordoned"] = _cordoned(record)
    fold.own("brokers")[broker.id] = broker._replace(**change)


def _fence_broker(fold: _Fold, record) -> None:
    broker = _known_broker(fold, record.id, record.epoch)
    fold.own("brokers")[broker.id] = broker._replace(fenced=True)


def _unfence_broker(fold: _Fold, record) -> None:
    broker = _known_broker(fold, record.id, record.epoch)
    fold.own("brokers")[broker.id] = broker._replace(fenced=False)


def _known_broker(fold: _Fold, broker_id: int, broker_epoch: int) -> Broker:
    broker = fold.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        raise MetadataError(f"broker {broker_id} at epoch {broker_epoch} is not registered")
    return broker


def _feature(fold: _Fold, record) -> None:
    features = fold.own("features")
    if record.feature_level == 0:
        features.pop(record.name, None)
    else:
        features[record.name] = record.feature_level


def _producer_ids(fold: _Fold, record) -> None:
    if record.next_producer_id < fold.next_producer_id:
        raise MetadataError(f"producer ids decrease from {fold.next_producer_id} to "
                            f"{record.next_producer_id}")
    fold.next_producer_id = record.next_producer_id


def _clear_elr(fold: _Fold, record) -> None:
    """Clear the ELR of one topic, or of all (KIP-966). A missing topic has none."""
    for name in [record.topic_name] if record.topic_name else list(fold.topics):
        topic = fold.topics.get(name)
        if topic is None:
            continue
        states = fold.partitions_of(topic.id)
        states[:] = [fold.shared(state._replace(
            eligible_leader_replicas=(), last_known_elr=(),
            partition_epoch=state.partition_epoch + 1))
            if state.eligible_leader_replicas or state.last_known_elr else state
            for state in states]


def security_key(record) -> tuple:
    """Return the key of an ACL or credential in Image.security. Raises KeyError for other records.
    """
    kind = type(record).__name__
    return kind, tuple([getattr(record, field) for field in _SECURITY[kind]])


def _secured(fold: _Fold, record) -> None:
    """Store a security record; it replaces the one with the same key."""
    key = security_key(record)
    _forget_rule(fold, key)
    fold.own("security")[key] = record
    fold.security_keys.add(key)
    if key[0] == ACCESS_RULE:
        _add_rule(fold.own("rules"), record)


def _unsecured(fold: _Fold, record) -> None:
    kind, id_ = security_key(record)
    key = (kind.removeprefix("Remove"), id_)
    if key not in fold.security:
        raise MetadataError(f"{kind} names an unknown one: {id_}")
    _forget_rule(fold, key)
    del fold.own("security")[key]
    fold.security_keys.add(key)


def _forget_rule(fold: _Fold, key: tuple) -> None:
    record = fold.security.get(key)
    if record is not None and key[0] == ACCESS_RULE:
        words, rules = rule_words(record), fold.own("rules")
        left = tuple([id_ for id_ in rules[words] if id_ != bytes(record.id)])
        if left:
            rules[words] = left
        else:
            del rules[words]


def rule_words(record) -> tuple:
    """Return the fields of an AccessControlEntryRecord, in the order of authorizer.Rule."""
    return (record.resource_type, record.pattern_type, record.resource_name, record.principal,
            record.host, record.operation, record.permission_type)


def _rules(security: dict) -> dict[tuple, tuple]:
    found: dict[tuple, tuple] = {}
    for (kind, _), record in security.items():
        if kind == ACCESS_RULE:
            _add_rule(found, record)
    return found


def _add_rule(rules: dict, record) -> None:
    words = rule_words(record)
    rules[words] = (*rules.get(words, ()), bytes(record.id))


def _nothing(fold: _Fold, record) -> None:
    """Ignore a record without state: a no-op, the end of a ZooKeeper migration, or a controller's
    registration, which only KRaft voters read.
    """


# Transaction markers; image.loader removes them.
_FRAMES = frozenset(("BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"))
# ACLs and credentials -> their identifying fields.
_SECURITY = {
    "AccessControlEntryRecord": ("id",),
    "RemoveAccessControlEntryRecord": ("id",),
    "UserScramCredentialRecord": ("name", "mechanism"),
    "RemoveUserScramCredentialRecord": ("name", "mechanism"),
    "DelegationTokenRecord": ("token_id",),
    "RemoveDelegationTokenRecord": ("token_id",),
}
_STEPS = {
    "TopicRecord": _topic,
    "PartitionRecord": _partition,
    "PartitionChangeRecord": _partition_change,
    "RemoveTopicRecord": _remove_topic,
    "ConfigRecord": _config,
    "ClientQuotaRecord": _client_quota,
    "RegisterBrokerRecord": _register_broker,
    "UnregisterBrokerRecord": _unregister_broker,
    "BrokerRegistrationChangeRecord": _broker_change,
    "FenceBrokerRecord": _fence_broker,
    "UnfenceBrokerRecord": _unfence_broker,
    "FeatureLevelRecord": _feature,
    "ProducerIdsRecord": _producer_ids,
    "RegisterControllerRecord": _nothing,
    "UnregisterControllerRecord": _nothing,
    "NoOpRecord": _nothing,
    "ZkMigrationStateRecord": _nothing,
    "ClearElrRecord": _clear_elr,
    "AbortTransactionRecord": _nothing,
    **{kind: _unsecured if kind.startswith("Remove") else _secured for kind in _SECURITY},
}
