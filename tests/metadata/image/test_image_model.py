"""The image compared with a simple model: random records, and every field compared after each
range.

The model changes plain dictionaries; it rejects a record before it changes any.
"""

import pytest

from pylog.config import client_quotas
from pylog.metadata.image.image import Image, MetadataError, advance, difference
from pylog.protocol import messages

NAMES, BROKERS = ("a", "b", "__consumer_offsets"), (1, 2, 3)
LISTS = ("replicas", "isr", "removing_replicas", "adding_replicas", "eligible_leader_replicas",
         "last_known_elr", "directories")
FIELDS = (*LISTS, "leader", "leader_epoch", "partition_epoch", "leader_recovery_state")


class Contradiction(Exception):
    """The model rejects a record."""


class Model:
    """topics: id -> (name, [partition as a dict]). touched: topics that a delta must contain."""

    def __init__(self):
        self.topics, self.configs, self.brokers, self.features = {}, {}, {}, {}
        self.quotas, self.security, self.producer_id = {}, {}, 0

    def begin(self):
        self.touched, self.touched_configs, self.touched_security = set(), set(), set()
        self.touched_quotas = False

    def apply(self, record):
        getattr(self, type(record).__name__)(record)

    def _topic(self, id_):
        if bytes(id_) not in self.topics:
            raise Contradiction
        self.touched.add(bytes(id_))
        return self.topics[bytes(id_)][1]

    def TopicRecord(self, record):
        if record.name in [name for name, _ in self.topics.values()] \
                or bytes(record.topic_id) in self.topics:
            raise Contradiction
        self.topics[bytes(record.topic_id)] = record.name, []
        self.touched.add(bytes(record.topic_id))

    def PartitionRecord(self, record):
        rows = self._topic(record.topic_id)
        if not 0 <= record.partition_id <= len(rows):
            raise Contradiction
        rows[record.partition_id:record.partition_id + 1] = [{
            **{name: tuple(getattr(record, name) or ()) for name in LISTS},
            **{name: getattr(record, name) for name in FIELDS if name not in LISTS}}]

    def PartitionChangeRecord(self, record):
        rows = self._topic(record.topic_id)
        if not 0 <= record.partition_id < len(rows):
            raise Contradiction
        row = rows[record.partition_id]
        row["partition_epoch"] += 1
        for name in LISTS:
            if getattr(record, name) is not None:
                row[name] = tuple(getattr(record, name))
        if record.leader != -2:
            row["leader"] = record.leader
            row["leader_epoch"] += 1
        if record.leader_recovery_state >= 0:
            row["leader_recovery_state"] = record.leader_recovery_state

    def RemoveTopicRecord(self, record):
        self._topic(record.topic_id)
        name, _ = self.topics.pop(bytes(record.topic_id))
        self.configs.pop((2, name), None)

    def ConfigRecord(self, record):
        key = record.resource_type, record.resource_name
        self.touched_configs.add(key)
        values = self.configs.setdefault(key, {})
        values[record.name] = record.value
        self._drop_nulls(self.configs, key)

    def ClientQuotaRecord(self, record):
        key = client_quotas.entity((one.entity_type, one.entity_name) for one in record.entity)
        self.touched_quotas = True
        values = self.quotas.setdefault(key, {})
        values[record.key] = None if record.remove else record.value
        self._drop_nulls(self.quotas, key)

    @staticmethod
    def _drop_nulls(rows, key):
        rows[key] = {name: value for name, value in rows[key].items() if value is not None}
        if not rows[key]:
            del rows[key]

    def RegisterBrokerRecord(self, record):
        self.brokers[record.broker_id] = {
            "id": record.broker_id, "epoch": record.broker_epoch, "rack": record.rack,
            "incarnation_id": bytes(record.incarnation_id), "fenced": record.fenced,
            "in_controlled_shutdown": record.in_controlled_shutdown,
            "endpoints": tuple((one.name, one.host, one.port, one.security_protocol)
                               for one in record.end_points),
            "features": tuple((one.name, one.min_supported_version, one.max_supported_version)
                              for one in record.features),
            "directories": tuple(record.log_dirs or ()), "cordoned": _cordoned(record)}

    def UnregisterBrokerRecord(self, record):
        if record.broker_id not in self.brokers:
            raise Contradiction
        del self.brokers[record.broker_id]

    def _broker(self, id_, epoch):
        if id_ not in self.brokers or self.brokers[id_]["epoch"] != epoch:
            raise Contradiction
        return self.brokers[id_]

    def BrokerRegistrationChangeRecord(self, record):
        row = self._broker(record.broker_id, record.broker_epoch)
        for name in ("fenced", "in_controlled_shutdown"):
            if getattr(record, name) != 0:
                row[name] = getattr(record, name) == 1
        if record.log_dirs:
            row["directories"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            row["cordoned"] = _cordoned(record)

    def FenceBrokerRecord(self, record):
        self._broker(record.id, record.epoch)["fenced"] = True

    def UnfenceBrokerRecord(self, record):
        self._broker(record.id, record.epoch)["fenced"] = False

    def FeatureLevelRecord(self, record):
        self.features[record.name] = record.feature_level
        if not record.feature_level:
            del self.features[record.name]

    def ProducerIdsRecord(self, record):
        if record.next_producer_id < self.producer_id:
            raise Contradiction
        self.producer_id = record.next_producer_id

    def NoOpRecord(self, record):
        pass

    def ClearElrRecord(self, record):
        for id_, (name, rows) in self.topics.items():
            if record.topic_name in ("", name):
                self.touched.add(id_)
                for row in rows:
                    if row["eligible_leader_replicas"] or row["last_known_elr"]:
                        row["eligible_leader_replicas"] = row["last_known_elr"] = ()
                        row["partition_epoch"] += 1

    def AccessControlEntryRecord(self, record):
        key = "AccessControlEntryRecord", (record.id,)
        self.security[key] = record
        self.touched_security.add(key)

    def RemoveAccessControlEntryRecord(self, record):
        key = "AccessControlEntryRecord", (record.id,)
        if key not in self.security:
            raise Contradiction
        del self.security[key]
        self.touched_security.add(key)


def _some(random, values=BROKERS):
    return random.sample(values, random.randrange(len(values) + 1))


def _partition(random, kind, **fixed):
    record = kind(topic_id=_id(random), partition_id=random.randrange(-1, 4), **fixed)
    for name in LISTS[:-1]:
        change = kind is messages.PartitionChangeRecord
        optional = change or name in ("eligible_leader_replicas", "last_known_elr")
        setattr(record, name, None if optional and random.random() < 0.4 else _some(random))
    record.directories = None if random.random() < 0.4 else [bytes(16)] * random.randrange(3)
    record.leader_recovery_state = random.choice((-1, 0, 1) if change else (0, 1))
    return record


def _id(random):
    return bytes(15) + bytes((random.randrange(4),))


def _drawn(random):
    """Return a random record, which may contradict the current state."""
    m, broker, epoch = messages, random.choice(BROKERS), random.randrange(3)
    return random.choice((
        lambda: m.TopicRecord(name=random.choice(NAMES), topic_id=_id(random)),
        lambda: _partition(random, m.PartitionRecord, leader=broker, leader_epoch=epoch,
                           partition_epoch=epoch),
        lambda: _partition(random, m.PartitionRecord, leader=broker, leader_epoch=epoch),
        lambda: _partition(random, m.PartitionChangeRecord, leader=random.choice((-2, -1, 1, 2))),
        lambda: _partition(random, m.PartitionChangeRecord, leader=random.choice((-2, -1, 1, 2))),
        lambda: m.RemoveTopicRecord(topic_id=_id(random)),
        lambda: m.ConfigRecord(resource_type=random.choice((2, 4)), value=random.choice(
            (None, "1", "2")), resource_name=random.choice(NAMES), name=random.choice("xy")),
        lambda: m.ClientQuotaRecord(
            entity=[m.ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in random.sample((("user", "u"), ("client-id", None)), 1)],
            key=random.choice(("producer_byte_rate", "consumer_byte_rate")),
            value=random.choice((1.0, 2.0)), remove=random.random() < 0.5),
        lambda: m.RegisterBrokerRecord(
            broker_id=broker, broker_epoch=epoch, rack=random.choice((None, "r")),
            incarnation_id=_id(random), fenced=random.random() < 0.5,
            in_controlled_shutdown=random.random() < 0.5,
            end_points=[m.RegisterBrokerRecord.BrokerEndpoint(
                name="L", host="h", port=9, security_protocol=1)],
            features=[m.RegisterBrokerRecord.BrokerFeature(
                name="f", min_supported_version=1, max_supported_version=2)],
            log_dirs=[_id(random)]),
        lambda: m.UnregisterBrokerRecord(broker_id=broker),
        lambda: m.BrokerRegistrationChangeRecord(
            broker_id=broker, broker_epoch=epoch, fenced=random.choice((-1, 0, 1)),
            in_controlled_shutdown=random.choice((0, 1)),
            log_dirs=[_id(random)] * random.randrange(2),
            cordoned_log_dirs=random.choice((None, [], [_id(random)]))),
        lambda: m.FenceBrokerRecord(id=broker, epoch=epoch),
        lambda: m.UnfenceBrokerRecord(id=broker, epoch=epoch),
        lambda: m.FeatureLevelRecord(name=random.choice("pq"), feature_level=epoch),
        lambda: m.ProducerIdsRecord(next_producer_id=random.randrange(50)),
        lambda: m.NoOpRecord(),
        lambda: m.ClearElrRecord(topic_name=random.choice(("", "a"))),
        lambda: m.AccessControlEntryRecord(
            id=_id(random), principal=random.choice(("User:u", "User:v"))),
        lambda: m.RemoveAccessControlEntryRecord(id=_id(random)),
    ))()


def _seen(image):
    """Return the image in the model's form."""
    topics = {}
    for id_, topic in image.topics_by_id.items():
        assert image.topics[topic.name] is topic and topic.id == id_
        topics[id_] = topic.name, [
            {name: getattr(state, name) for name in FIELDS} for state in topic.partitions]
    brokers = {id_: {**row._asdict(), "endpoints": tuple(map(tuple, row.endpoints))}
               for id_, row in image.brokers.items()}
    configs, quotas = ({key: dict(values) for key, values in rows.items()}
                       for rows in (image.configs, image.client_quotas))
    return (topics, configs, brokers, dict(image.features), image.next_producer_id, quotas,
            dict(image.security))


def _cordoned(record):
    return None if record.cordoned_log_dirs is None else tuple(record.cordoned_log_dirs)


def _expected(model):
    return (model.topics, model.configs, model.brokers, model.features, model.producer_id,
            model.quotas, model.security)


def _check_rules(image):
    """The index of rules by content contains each record once, independent of their order."""
    assert Image(security=image.security).rules.keys() == image.rules.keys()
    ids = [id_ for some in image.rules.values() for id_ in some]
    assert sorted(ids) == sorted(bytes(record.id) for record in image.security.values())
    for words, some in image.rules.items():
        for id_ in some:
            assert words[3] == image.security["AccessControlEntryRecord", (id_,)].principal


def test_random_image_matches_its_records_and_delta(random_source):
    for _ in range(20):
        image, model, offset = Image(), Model(), -1
        for _ in range(60):
            model.begin()
            stretch, before = [], _seen(image)
            while len(stretch) < random_source.randrange(1, 4):
                record, touched = _drawn(random_source), set(model.touched)
                try:
                    model.apply(record)
                except Contradiction:
                    model.touched = touched
                    with pytest.raises(MetadataError):
                        advance(image, [*stretch, record], offset + 9, 7)
                    continue
                stretch.append(record)
                if type(record).__name__ == "RemoveTopicRecord":
                    break  # Deleting a name and reusing it at once has a separate test.
            offset += len(stretch)
            delta = advance(image, stretch, offset, 7)
            assert delta.before is image and _seen(image) == before
            after, seen = delta.after, _seen(delta.after)
            assert seen == _expected(model), stretch
            assert (after.offset, after.epoch) == (offset, 7)
            assert (delta.topic_ids, delta.configs) == (model.touched, model.touched_configs)
            assert (delta.client_quotas, delta.security) == (
                model.touched_quotas, model.touched_security)
            other = difference(image, after)
            assert other.topic_ids == {id_ for id_ in before[0].keys() | seen[0].keys()
                                       if before[0].get(id_) != seen[0].get(id_)}
            assert other.configs == {key for key in before[1].keys() | seen[1].keys()
                                     if before[1].get(key) != seen[1].get(key)}
            assert other.client_quotas == (before[5] != seen[5])
            assert other.security == {key for key in before[6].keys() | seen[6].keys()
                                      if before[6].get(key) != seen[6].get(key)}
            assert (image == after) == (before == seen and image.offset == after.offset
                                        and image.epoch == after.epoch)
            for name in NAMES:
                topic = after.topics.get(name)
                count = len(topic.partitions) if topic else 0
                assert after.topic_config(name) == after.configs.get((2, name), {})
                assert [after.partition(name, index) for index in (-1, count)] == [None, None]
                assert all(after.partition(name, index) is topic.partitions[index]
                           for index in range(count))
            _check_rules(after)
            for id_ in (*BROKERS, 9):
                row = seen[2].get(id_)
                assert after.broker_is_active(id_) == (
                    row is not None and not row["fenced"] and not row["in_controlled_shutdown"])
            image = after
