"""The catalogue row by row, and parsing of values, compared with the tables inside Kafka's jars."""

import subprocess
from pathlib import Path

import pytest

from bench.kafka import KafkaMissing, java_command
from pylog.config import ConfigError, Settings, catalogue, values
from tests.config.questions import kafkas_broker_settings, texts_of

pytestmark = pytest.mark.kafka
PROGRAM = Path(__file__).with_name("Catalogue.java")
MODES = {"": "", "per-broker": "broker", "cluster-wide": "cluster"}
# Tried on every setting.
TEXTS = ["", " ", "0", "1", "-1", "-2", "-3", " 7 ", "+7", "1_0", "1.5", "1e3", "0.5", "2147483647",
         "2147483648", "-2147483648", "32768", "9223372036854775807", "9223372036854775808", "true",
         "TRUE", "yes", "delete", "compact", "delete, compact", "delete,delete", "CreateTime",
         "createtime", "gzip", "GZIP", "es256", "disabled", "broker", "a,b", "none", "SSL"]
TOGETHER = [
    "min.compaction.lag.ms=10;max.compaction.lag.ms=9",
    "min.compaction.lag.ms=10;max.compaction.lag.ms=10",
    "remote.storage.enable=true",
    "remote.storage.enable=false",
    "local.retention.ms=10;retention.ms=5",
    "local.retention.bytes=10;retention.bytes=5",
    "remote.log.copy.disable=true",
    "cleanup.policy=compact,delete",
    "segment.byte=1048576",
    "segment.bytes=1",
    "leader.replication.throttled.replicas=*",
    "leader.replication.throttled.replicas=0:1,1:2",
    "leader.replication.throttled.replicas=0-1",
    "follower.replication.throttled.replicas=a:b",
    "follower.replication.throttled.replicas=",
    "retention.ms=-1;retention.bytes=-1",
    "retention.bytes=-7",
    "flush.ms=0",
]
LISTS = ["delete", " delete , compact ", "delete,delete", "shred", "delete,shred"]
# Kafka loads the class of a class name, and does not display passwords.
NOT_ASKED = {"class", "password"}
# Checked by ours only at the start (`start` below), or accepted by Kafka in an empty form (",").
LISTS_NOT_ASKED = {"controller.quorum.bootstrap.servers", "controller.quorum.voters",
                   "controller.listener.names", "leader.replication.throttled.replicas",
                   "follower.replication.throttled.replicas",
                   # Kafka rejects a repetition only when it starts.
                   "group.streams.rack.aware.assignment.tags"}
# Two settings that a start needs: if only one of them is set, related settings are missing.
STARTS = (
    "group.consumer.heartbeat.interval.ms=45000;group.consumer.max.heartbeat.interval.ms=50000",
    "group.consumer.heartbeat.interval.ms=44999;group.consumer.max.heartbeat.interval.ms=50000",
    "group.share.heartbeat.interval.ms=45000;group.share.max.heartbeat.interval.ms=50000",
    "group.streams.heartbeat.interval.ms=45000;group.streams.max.heartbeat.interval.ms=50000",
    "max.connections.per.ip=0;max.connections.per.ip.overrides=127.0.0.1:5",
    "max.connections.per.ip=0;max.connections.per.ip.overrides=",
    "log.cleaner.threads=2;log.cleaner.dedupe.buffer.size=2097152",
    "log.cleaner.threads=2;log.cleaner.dedupe.buffer.size=2097154",
    "log.dirs=/tmp/a,/tmp/b;cordoned.log.dirs=/tmp/b",
    "log.dirs=/tmp/a,/tmp/b;cordoned.log.dirs=/tmp/c",
    "log.dir=/tmp/a;log.dirs=/tmp/b;cordoned.log.dirs=/tmp/a",
    "group.share.max.size=500;group.share.max.share.sessions=499",
    "group.share.max.size=500;group.share.max.share.sessions=500",
    "connections.max.idle.ms=50;connection.failed.authentication.delay.ms=49",
    "connections.max.idle.ms=50;connection.failed.authentication.delay.ms=50",
    "connections.max.idle.ms=-1;connection.failed.authentication.delay.ms=50",
    "replica.lag.time.max.ms=400;replica.fetch.wait.max.ms=401",
    "replica.lag.time.max.ms=400;replica.fetch.wait.max.ms=400",
    "group.share.min.delivery.count.limit=5;group.share.delivery.count.limit=4",
    "group.share.max.delivery.count.limit=5;group.share.delivery.count.limit=6",
    "controller.quorum.bootstrap.servers=a:1",
    "controller.quorum.voters=2@a:1",
    "early.start.listeners=PLAINTEXT",
    "early.start.listeners=CONTROLLER",
)
# Permitted differences, with reasons in docs/reference/differences.md: requirements of a start
# without a file, Java classes, listeners and brokers that do not exist.
START_DIFFERS = {
    "broker.id", "controller.listener.names", "controller.quorum.voters",
    "group.consumer.assignors", "group.share.assignors", "group.streams.assignors",
    "listener.security.protocol.map",
    "listeners", "log.dir", "log.dirs", "max.connection.creation.rate", "max.connections",
    "node.id", "process.roles", "remote.log.storage.system.enable",
    "security.inter.broker.protocol", "inter.broker.listener.name",
}


def setting_of(table: str, name: str) -> catalogue.Setting:
    return catalogue.broker(name) if table == "broker" else catalogue.topic(name)


def every_setting():
    for name in kafkas_broker_settings():
        yield "broker", name
    for name in catalogue.topic_names():
        yield "topic", name


def questions():
    for table, name in every_setting():
        setting = setting_of(table, name)
        if setting.type not in NOT_ASKED and name not in catalogue.INTERNAL | LISTS_NOT_ASKED:
            some = texts_of(setting) + (TEXTS if setting.type != "list" else [])
            yield from ((table, name, text) for text in dict.fromkeys(some))
            if table == "broker" and name not in START_DIFFERS:
                yield from (("start", "", f"{name}={text}") for text in texts_of(setting))
    yield from (("topic", "cleanup.policy", text) for text in LISTS)
    yield from (("together", "", text) for text in TOGETHER)
    yield from (("start", "", text) for text in STARTS)


QUESTIONS = list(questions())


@pytest.fixture(scope="module")
def kafkas_table():
    """Return Kafka's rows, and its response to each query (table, name, text)."""
    try:
        command = java_command(str(PROGRAM))
    except KafkaMissing as missing:
        pytest.fail(str(missing))
    asked = "".join("\t".join(question) + "\n" for question in QUESTIONS)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    answers = [line[1] for line in lines if line[0] == "value"]
    return ([line for line in lines if line[0] != "value"],
            dict(zip(QUESTIONS, answers, strict=True)))


def test_every_row_of_the_catalogue_is_kafkas(kafkas_table):
    rows, _ = kafkas_table
    assert [(row[0], row[1]) for row in rows] == list(every_setting())
    for table, name, kind, default, importance, mode, internal, synonyms in rows:
        setting = setting_of(table, name)
        assert setting.type == kind.lower(), name
        assert setting.importance == importance.lower(), name
        assert setting.dynamic == MODES[mode], name
        assert (name in catalogue.INTERNAL) == (internal == "true"), name
        assert ",".join(setting.synonyms) == synonyms, name
        ours = setting.kafka_default
        assert ("<unset>" if ours is None else values.format_value(ours)) == default, name


def test_every_value_is_accepted_or_rejected_as_by_kafka(kafkas_table):
    differences = []
    for (table, name, text), answer in kafkas_table[1].items():
        ours = answer_to(table, name, text)
        if ours != ("!" if answer.startswith("!") else answer):
            differences.append((table, name, text, ours, answer))
    assert not differences, f"{len(differences)}: {differences[:20]}"


def answer_to(table: str, name: str, text: str) -> str:
    try:
        if table == "together":
            Settings().validate_topic_configs(dict(pair.split("=", 1) for pair in text.split(";")))
            return "taken"
        if table == "start":
            Settings(dict(pair.split("=", 1) for pair in [
                "node.id=1", "controller.listener.names=CONTROLLER", *text.split(";")]))
            return "taken"
        return values.format_value(values.parse(setting_of(table, name), text))
    except ConfigError:
        return "!"
