"""The catalogue row by row, and the reading of values, against the tables inside Kafka's jars."""

import subprocess
from pathlib import Path

import pytest

from bench.kafka import KafkaMissing, java_command
from pylog.config import ConfigError, Settings, catalogue, values

pytestmark = pytest.mark.kafka
PROGRAM = Path(__file__).with_name("Catalogue.java")
MODES = {"": "", "per-broker": "broker", "cluster-wide": "cluster"}
# Each is tried on every setting.
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
LISTS = ["", "delete", " delete , compact ", "delete,delete", "shred", "delete,shred"]
# A class name must name a class there, most lists of a broker are checked later, at its start, and
# passwords are not shown.
NOT_ASKED = {"class", "list", "password"}


def setting_of(table: str, name: str) -> catalogue.Setting:
    return catalogue.broker(name) if table == "broker" else catalogue.topic(name)


def every_setting():
    own = {row[0] for row in catalogue.OWN}
    for name in catalogue.broker_names():
        if name not in own:
            yield "broker", name
    for name in catalogue.topic_names():
        yield "topic", name


def questions():
    for table, name in every_setting():
        setting = setting_of(table, name)
        if setting.type not in NOT_ASKED and name not in catalogue.INTERNAL:
            yield from ((table, name, text) for text in TEXTS)
    yield from (("topic", "cleanup.policy", text) for text in LISTS)
    yield from (("together", "", text) for text in TOGETHER)


QUESTIONS = list(questions())


@pytest.fixture(scope="module")
def kafkas_table():
    """Kafka's rows, and its answer to each question (table, name, text)."""
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


def test_every_value_is_taken_or_refused_as_kafka_does(kafkas_table):
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
        return values.format_value(values.parse(setting_of(table, name), text))
    except ConfigError:
        return "!"
