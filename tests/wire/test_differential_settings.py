"""Settings of brokers and topics at their limits and in random walks, to Apache Kafka and brokerd.

They follow --seed; --seed random explores further. Permitted differences are in
docs/reference/differences.md.
"""

import random
import time

import pytest

from pylog.config import catalogue
from tests.config.questions import kafkas_broker_settings, texts_of
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.sides import Side, compare

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
# The start value: half and double of its threads are the limits.
BROKER_SETTINGS = {"num.network.threads": "3"}
DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL = 32, 33, 44
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
SETTLE_S = 0.4
STEPS = 40
# Java classes are not checked here; the others are documented too.
NOT_ASKED = {"listener.security.protocol.map", "listeners", "metric.reporters",
             "min.insync.replicas", "internal.segment.bytes", "config.providers",
             "cordoned.log.dirs", "log.flush.interval.ms",
             "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
LISTENER = ("max.connections", "max.connection.creation.rate", "num.network.threads",
            "max.connections.per.ip", "ssl.keystore.type", "log.roll.ms", "connections.max.idle.ms")


def _alter(side: Side, kind: int, name: str, row: dict, validate_only: bool, key=INCREMENTAL):
    answer = ask(side.connection, key, 1, validate_only=validate_only, resources=[
        {"resource_type": kind, "resource_name": name, "configs": [row]}])["responses"][0]
    return answer["error_code"], answer["error_message"] is None


def _questions(topic: str):
    """Yield (kind, resource, setting's name, texts): all settings that can change, and a few that
    cannot.
    """
    for name in kafkas_broker_settings():
        setting = catalogue.broker(name)
        if name in NOT_ASKED or setting.type == "class":
            continue
        if not setting.dynamic:
            yield BROKER, "1", name, texts_of(setting)[:1]
            continue
        for resource in ("1", ""):
            yield BROKER, resource, name, texts_of(setting)
    for name in LISTENER:
        for resource in ("1", ""):
            yield (BROKER, resource, f"listener.name.plaintext.{name}",
                   texts_of(catalogue.broker(name)))
    for name in catalogue.topic_names():
        if name not in NOT_ASKED:
            yield TOPIC, topic, name, texts_of(catalogue.topic(name))


def _at_limits(side: Side) -> None:
    topic = side.topic("limits")
    for kind, resource, name, texts in _questions(topic):
        for text in dict.fromkeys(texts):
            row = {"name": name, "config_operation": SET, "value": text}
            side.note(f"{kind} {side.stems.get(resource, resource)!r} {name}={text}",
                      _alter(side, kind, resource, row, True))


def test_every_dynamic_setting_is_accepted_or_rejected_as_by_kafka(kafka, target):
    compare(kafka, target, _at_limits)


# Broker settings that do not affect the tests, and that topics display. Kafka accepts larger values
# of log.flush.interval.ms and the compaction lags than a topic can have, and then rejects topics.
WALKED = ("log.retention.ms", "log.segment.bytes", "log.roll.ms", "log.roll.jitter.ms",
          "log.cleanup.policy", "log.cleaner.delete.retention.ms",
          "log.cleaner.max.compaction.lag.ms", "message.max.bytes", "compression.type",
          "log.index.interval.bytes", "log.message.timestamp.type", "log.preallocate",
          "log.local.retention.ms")


def _row(generator: random.Random, setting, name: str, incremental: bool) -> dict:
    text = generator.choice(texts_of(setting))
    if generator.random() < 0.6 and setting.default is not None and setting.type in ("int", "long"):
        text = str(generator.choice([setting.default, 2 << 20, 3 << 20, 9 << 20]))
    if setting.type == "list":
        text = generator.choice(["delete", "compact", "delete,compact", "compact,compact", "x"])
    if not incremental:
        return {"name": name, "value": text}
    operations = [SET] * 5 + [DELETE] * 2
    if setting.type == "list":
        operations += [APPEND, SUBTRACT] * 3
    operation = generator.choice(operations)
    return {"name": name, "config_operation": operation,
            "value": None if operation == DELETE else text}


def _describe(side: Side, label: str, kind: int, name: str, keys: list[str]) -> None:
    answer = ask(side.connection, DESCRIBE_CONFIGS, 4, include_synonyms=True,
                 include_documentation=False, resources=[
                     {"resource_type": kind, "resource_name": name, "configuration_keys": keys}])
    for result in answer["results"]:
        result["configs"].sort(key=lambda config: config["name"])
        for config in result["configs"]:
            config["documentation"] = None
    side.note(label, answer)


def _walk(side: Side, seed: int) -> None:
    generator = random.Random(seed)
    topic = side.topic("walked")
    names = [name for name in catalogue.topic_names()
             if name not in NOT_ASKED and not name.startswith(("remote.", "internal."))]
    for step in range(STEPS):
        draw = generator.random()
        if draw < 0.15:
            name = generator.choice(names)
            row = _row(generator, catalogue.topic(name), name, False)
            answer = ask(side.connection, raw.CREATE_TOPICS, 7, timeout=5000, topics=[{
                "name": side.name("made"), "num_partitions": 1, "replication_factor": 1,
                "configs": [row]}])["topics"][0]
            side.note(f"{step} create {row}", (answer["error_code"], sorted(
                (config["name"], config["value"], config["config_source"])
                for config in answer["configs"] or ()
                if config["name"] != "min.insync.replicas")))
            continue
        is_topic = draw < 0.65
        # Kafka refuses to omit the cluster's min.insync.replicas, which differs.
        incremental = not is_topic or generator.random() < 0.8
        name = generator.choice(names if is_topic else WALKED)
        setting = catalogue.topic(name) if is_topic else catalogue.broker(name)
        kind, resource = (TOPIC, topic) if is_topic else (BROKER, generator.choice(["1", ""]))
        row = _row(generator, setting, name, incremental)
        key = INCREMENTAL if incremental else ALTER_CONFIGS
        label = f"{step} {'incremental' if incremental else 'alter'} {kind} " \
                f"{side.stems.get(resource, resource)!r} {row}"
        side.note(label, _alter(side, kind, resource, row, generator.random() < 0.1, key))
        time.sleep(SETTLE_S if side.broker.name == "kafka" else 0)
        _describe(side, f"{label}: topic", TOPIC, topic, names)
        _describe(side, f"{label}: broker", BROKER, "1", list(WALKED))
        _describe(side, f"{label}: cluster", BROKER, "", list(WALKED))
    for resource in ("1", ""):
        for name in WALKED:
            _alter(side, BROKER, resource,
                   {"name": name, "config_operation": DELETE, "value": None}, False)


# A failed walk leaves Kafka's settings changed, which may break other tests.
@pytest.mark.slow
@pytest.mark.parametrize("turn", [1, 10])
def test_random_setting_changes_match_kafka(kafka, target, random_source, turn):
    for _ in range(turn):
        seed = random_source.randrange(1 << 31)
        try:
            compare(kafka, target, _walk, seed)
        except AssertionError as difference:
            raise AssertionError(f"seed {seed}: {difference}") from None
