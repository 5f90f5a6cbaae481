"""Messages of common administration errors: brokerd's message contains Kafka's.

Tools and other projects' tests search for these texts. Ours may add to them, such as the nearest
valid name.
"""

import re
import uuid

import pytest

from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.sides import Side

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(200)]
ALTER, INCREMENTAL, DESCRIBE, PARTITIONS, FEATURES = 33, 44, 32, 37, 57
TOPIC, BROKER, LOGGER, SUBSCRIPTION, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
# Text that Scala and Java add around the message.
WRAPPED = (re.compile(r"requirement failed: (.*)"),
           re.compile(r"Invalid value \S+Exception: (.*) for configuration Invalid dynamic .*"))
LONG = "x" * 250

SETTINGS = [
    *((TOPIC, "T", "segment.bytes", text, SET) for text in ("x", "0", "99999999999999999999")),
    (TOPIC, "T", "compression.gzip.level", "0", SET),
    (TOPIC, "T", "compression.zstd.level", "99", SET),
    (TOPIC, "T", "compression.type", "x", SET), (TOPIC, "T", "cleanup.policy", "x", SET),
    (TOPIC, "T", "cleanup.policy", "delete,,compact", SET),
    (TOPIC, "T", "preallocate", "x", SET), (TOPIC, "T", "min.cleanable.dirty.ratio", "7", SET),
    (TOPIC, "T", "leader.replication.throttled.replicas", "x", SET),
    (TOPIC, "T", "retention.ms", "1", APPEND), (TOPIC, "T", "retention.ms", "1", SUBTRACT),
    (TOPIC, "T", "retention.ms", None, SET), (TOPIC, "T", "segment.byte", "1", SET),
    (TOPIC, "T", "remote.storage.enable", "true", SET), (TOPIC, "M", "retention.ms", "1", SET),
    *((TOPIC, name, "retention.ms", "1", SET) for name in ("a b", "", LONG, "..")),
    (BROKER, "1", "log.dirs", "x", SET), (BROKER, "", "node.id", "x", SET),
    (BROKER, "", "listeners", "x", SET), (BROKER, "1", "ssl.keystore.location", "x", SET),
    (BROKER, "", "listener.name.plaintext.ssl.keystore.location", "x", SET),
    (BROKER, "7", "log.roll.ms", "1", SET), (BROKER, "x", "log.roll.ms", "1", SET),
    (BROKER, "1", "log.roll.ms", "x", SET), (BROKER, "1", "log.roll.ms", "0", SET),
    (BROKER, "1", "num.io.threads", "100", SET), (BROKER, "1", "num.io.threads", "1", SET),
    (BROKER, "1", "log.retention.ms", "0", SET), (BROKER, "1", "log.roll.ms", "1", APPEND),
    (BROKER, "", "max.connections", "0", SET), (BROKER, "", "max.connections.per.ip", "0", SET),
    (BROKER, "1", "log.roll.jitter.ms", "-1", SET), (BROKER, "1", "listeners", "", SET),
    (BROKER, "1", "cordoned.log.dirs", "/no", SET), (BROKER, "1", "compression.type", "x", SET),
    (BROKER, "", "log.cleaner.dedupe.buffer.size", "1", SET),
    (BROKER, "", "log.local.retention.ms", "-1", SET), (3, "x", "y", "z", SET),
    (GROUP, "", "y", "z", SET), (GROUP, "g", "y", "z", SET),
    (GROUP, "g", "consumer.session.timeout.ms", "1", SET),
    (GROUP, "g", "consumer.session.timeout.ms", "99999999", SET),
    (GROUP, "g", "share.auto.offset.reset", "x", SET),
    (SUBSCRIPTION, "", "metrics", "x", SET), (SUBSCRIPTION, "s", "y", "x", SET),
    (SUBSCRIPTION, "s", "interval.ms", "1", SET), (SUBSCRIPTION, "s", "match", "x=y", SET),
    (LOGGER, "1", "root", "x", SET), (LOGGER, "1", "no.logger", "INFO", SET),
    (LOGGER, "1", "root", None, DELETE), (LOGGER, "1", "root", "INFO", APPEND),
]
CREATED = [
    *({"name": name} for name in ("", ".", "a b", LONG, "\u00e9", "T", "__cluster_metadata")),
    {"num_partitions": 0}, {"num_partitions": 10_001}, {"replication_factor": 0},
    {"assignments": [(0, [1])]}, {"assignments": [(0, [1])], "num_partitions": -1},
    *({"assignments": rows, "num_partitions": -1, "replication_factor": -1} for rows in (
        [(1, [1])], [(0, [7])], [(0, [1, 1])], [(0, [])], [(0, [1]), (0, [1])])),
    {"configs": [("retention.ms", "x")]}, {"configs": [("retention.ms", None)]},
    {"configs": [("segment.byte", "1")]},
    {"configs": [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")]},
]


class _Asked:
    """Sends the same requests to one side; `texts` has (request, [(error code, message)])."""

    def __init__(self, broker):
        self.side = Side(broker)
        self.topic, self.missing = self.side.topic("there"), self.side.name("missing")
        self.names = {"T": self.topic, "M": self.missing}
        self.texts = []

    def ask(self, label, key, version, /, rows: str, **fields) -> None:
        answer = ask(self.side.connection, key, version, **fields)
        found = [(row["error_code"], row["error_message"]) for row in answer[rows]]
        self.texts.append((label, sorted((code, self._plain(text)) for code, text in found)))

    def _plain(self, text: str | None) -> str:
        for name, shown in ((self.topic, "T"), (self.missing, "M")):
            text = (text or "").replace(name, shown)
        return text


def _settings(asked: _Asked) -> None:
    for kind, name, key, value, operation in SETTINGS:
        row = {"name": key, "config_operation": operation, "value": value}
        resource = {"resource_type": kind, "resource_name": asked.names.get(name, name),
                    "configs": [row]}
        label = f"{kind} {name[:9]!r} {key}={value} {operation}"
        asked.ask(label, INCREMENTAL, 1, "responses", validate_only=True, resources=[resource])
    row = {"name": "retention.ms", "config_operation": SET, "value": "1"}
    resource = {"resource_type": TOPIC, "resource_name": asked.topic, "configs": [row]}
    asked.ask("a setting twice", INCREMENTAL, 1, "responses", validate_only=True,
              resources=[{**resource, "configs": [row, row]}])
    asked.ask("a resource twice", INCREMENTAL, 1, "responses", validate_only=True,
              resources=[resource, resource])
    for kind, name, key in ((BROKER, "1", "node.id"), (LOGGER, "1", "root"), (TOPIC, "T", "y")):
        asked.ask(f"legacy {kind} {key}", ALTER, 2, "responses", validate_only=True, resources=[
            {"resource_type": kind, "resource_name": asked.names.get(name, name),
             "configs": [{"name": key, "value": "1"}]}])
    for kind, name in ((TOPIC, ""), (TOPIC, "a b"), (TOPIC, "."), (BROKER, "7"), (BROKER, "x"),
                       (LOGGER, ""), (GROUP, ""), (SUBSCRIPTION, "")):
        asked.ask(f"describe {kind} {name!r}", DESCRIBE, 4, "results", include_synonyms=False,
                  include_documentation=False, resources=[
                      {"resource_type": kind, "resource_name": name, "configuration_keys": []}])


def _topics(asked: _Asked) -> None:
    for row in CREATED:
        fields = {"name": "fresh", "num_partitions": 1, "replication_factor": 1, **row}
        fields["name"] = asked.names.get(fields["name"], fields["name"])
        fields["assignments"] = [{"partition_index": index, "broker_ids": brokers}
                                 for index, brokers in fields.get("assignments", ())]
        fields["configs"] = [{"name": name, "value": value}
                             for name, value in fields.get("configs", ())]
        asked.ask(f"create {str(row)[:60]}", raw.CREATE_TOPICS, 7, "topics", timeout=5000,
                  validate_only=True, topics=[fields])
    row = {"name": "fresh", "num_partitions": 1, "replication_factor": 1}
    asked.ask("create twice", raw.CREATE_TOPICS, 7, "topics", timeout=5000, validate_only=True,
              topics=[row, row])
    gone, none = uuid.UUID(int=5**20), uuid.UUID(int=0)
    for name, identity in ((asked.missing, none), (None, gone), (None, none),
                           (asked.missing, gone)):
        asked.ask(f"delete {name is None} {identity}", raw.DELETE_TOPICS, 6, "responses",
                  timeout=5000, topics=[{"name": name, "topic_id": identity}])
    for count, places in ((1, None), (0, None), (3, [[1]]), (2, [[7]]), (2, [[1, 1]]), (2, [[]])):
        asked.ask(f"partitions {count} {places}", PARTITIONS, 3, "results", timeout=5000,
                  validate_only=True, topics=[{
                      "name": asked.topic, "count": count, "assignments": places and [
                          {"broker_ids": brokers} for brokers in places]}])
    for feature, level in (("no.such", 1), ("transaction.version", 3), ("metadata.version", 8)):
        answer = ask(asked.side.connection, FEATURES, 2, timeout=5000, validate_only=True,
                     feature_updates=[{"feature": feature, "max_version_level": level,
                                       "upgrade_type": 1}])
        asked.texts.append((f"{feature} {level}",
                            [(answer["error_code"], answer["error_message"])]))


def _inner(text: str) -> str:
    for wrapping in WRAPPED:
        found = wrapping.fullmatch(text)
        text = found[1] if found else text
    return text


@pytest.mark.parametrize("scenario", [_settings, _topics])
def test_error_messages_contain_kafkas_text(kafka, target, scenario):
    told = []
    for broker in (kafka, target):
        asked = _Asked(broker)
        scenario(asked)
        asked.side.close()
        told.append(asked.texts)
    differences = []
    for (label, theirs), (_, ours) in zip(*told, strict=True):
        same = len(theirs) == len(ours) and all(
            code == other and _inner(text) in said
            for (code, text), (other, said) in zip(theirs, ours))
        if not same:
            differences.append(f"{label}: kafka {theirs} != ours {ours}")
    assert not differences, "\n".join(differences)


def test_unknown_setting_is_reported_with_a_similar_name(target):
    asked = _Asked(target)
    for kind, name, key, near in (
            (TOPIC, asked.topic, "segment.byte", "segment.bytes"),
            (GROUP, "g", "consumer.session.timeout", "consumer.session.timeout.ms")):
        asked.ask(key, INCREMENTAL, 1, "responses", validate_only=True, resources=[
            {"resource_type": kind, "resource_name": name, "configs": [
                {"name": key, "config_operation": SET, "value": "1"}]}])
        assert target.name == "kafka" or f"nearest valid name: {near}" in asked.texts[-1][1][0][1]
