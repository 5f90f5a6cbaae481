"""The same administration requests to Apache Kafka and to brokerd.

Permitted differences, with reasons, are in docs/reference/differences.md.
"""

import pytest

from pylog.config import catalogue
from pylog.metadata.image.record_versions import NEWEST_VERSION
from tests.fixtures.clusters import until
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.sides import Side, compare

pytestmark = pytest.mark.kafka
DELETE_RECORDS, DESCRIBE_CONFIGS, ALTER_CONFIGS, ALTER_LOG_DIRS, LOG_DIRS = 21, 32, 33, 34, 35
CREATE_PARTITIONS, ELECT_LEADERS, INCREMENTAL, REASSIGN, REASSIGNMENTS = 37, 43, 44, 45, 46
QUORUM, FEATURES, PRODUCERS, RESOURCES = 55, 57, 61, 74
INVALID_REPLICATION_FACTOR = 38
TOPIC, BROKER, LOGGER, SUBSCRIPTION, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def _shown(answer: dict) -> list:
    """Return DescribeConfigs without fields that may differ or that only one side has."""
    rows = []
    for result in answer["results"]:
        configs = []
        for config in result["configs"]:
            config = dict(config)
            told = config.pop("documentation", None)
            config["documented"] = told is not None
            configs.append(config)
        rows.append({**result, "configs": sorted(configs, key=lambda config: config["name"])})
    return rows


def _describe(side: Side, label: str, version: int, kind: int, name: str, keys=None,
              synonyms: bool = True, documentation: bool = False, drop=()) -> list:
    more = {"include_documentation": documentation} if version >= 3 else {}
    answer = ask(side.connection, DESCRIBE_CONFIGS, version, include_synonyms=synonyms, resources=[
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys}], **more)
    rows = _shown(answer)
    for row in rows:
        row["configs"] = [config for config in row["configs"] if config["name"] not in drop]
    side.note(label, rows)
    return rows


def _alter(side: Side, label: str, kind: int, name: str, *rows, version: int = 1,
           validate_only: bool = False) -> dict:
    answer = side.ask(label, INCREMENTAL, version, validate_only=validate_only, resources=[
        {"resource_type": kind, "resource_name": name, "configs": [
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in rows]}])
    side.settle()
    return answer


# ---- settings ---------------------------------------------------------------------------------

# Settings with different start values, and settings that only one side has.
OWN = {"log.dir", "log.dirs", "listeners", "advertised.listeners", "node.id", "broker.id",
       "process.roles", "controller.listener.names", "controller.quorum.voters",
       "listener.security.protocol.map", "num.network.threads", "socket.receive.buffer.bytes",
       "min.insync.replicas",
       "offsets.topic.replication.factor", "transaction.state.log.replication.factor",
       "transaction.state.log.min.isr", "share.coordinator.state.topic.replication.factor",
       "share.coordinator.state.topic.min.isr", "group.initial.rebalance.delay.ms",
       *(row[0] for row in catalogue.OWN)}
ELR = {"min.insync.replicas"}


def _describe_all(side: Side, version: int) -> None:
    name = side.topic("described", 1, retention_ms=1000, cleanup_policy="compact,delete")
    _describe(side, "topic", version, TOPIC, name, drop=ELR)
    _describe(side, "no synonyms", version, TOPIC, name, synonyms=False, drop=ELR)
    _describe(side, "keys", version, TOPIC, name, keys=["retention.ms", "no.such", "segment.ms"])
    _describe(side, "documented", version, TOPIC, name, keys=["retention.ms"], documentation=True)
    _describe(side, "no keys", version, TOPIC, name, keys=[], drop=ELR)
    for label, kind, asked in (
            ("missing", TOPIC, side.name("missing")), ("bad name", TOPIC, "a b"),
            ("no name", TOPIC, ""), ("other broker", BROKER, "7"), ("no number", BROKER, "x"),
            ("other logger", LOGGER, "7"), ("no logger", LOGGER, ""), ("no group", GROUP, ""),
            ("no subscription", SUBSCRIPTION, ""), ("unknown type", 3, "x"), ("type 0", 0, "")):
        _describe(side, label, version, kind, asked)
    _describe(side, "group", version, GROUP, side.name("group"))
    _describe(side, "subscription", version, SUBSCRIPTION, side.name("subscription"))
    _describe(side, "broker", version, BROKER, "1", drop=OWN)
    _describe(side, "broker's keys", version, BROKER, "1", keys=["log.retention.ms", "no.such"])


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs_matches_kafka(kafka, target, version):
    compare(kafka, target, _describe_all, version)


def _alter_topic(side: Side, version: int) -> None:
    name = side.topic("altered", 1, retention_ms=1000)
    rows = (
        ("set", ("retention.ms", SET, "5000"), ("segment.bytes", SET, "2097152")),
        ("the same", ("retention.ms", SET, "5000")),
        ("delete", ("segment.bytes", DELETE, None)),
        ("delete what is not set", ("flush.ms", DELETE, None)),
        ("delete with a value", ("retention.ms", DELETE, "x")),
        ("append", ("cleanup.policy", APPEND, "compact")),
        ("append again", ("cleanup.policy", APPEND, "compact")),
        ("subtract", ("cleanup.policy", SUBTRACT, "delete")),
        ("subtract what is not there", ("cleanup.policy", SUBTRACT, "delete")),
        ("append a wrong word", ("cleanup.policy", APPEND, "nonsense")),
        ("append to no list", ("retention.ms", APPEND, "7")),
        ("unknown name", ("no.such.setting", SET, "7")),
        ("delete an unknown name", ("no.such.setting", DELETE, None)),
        ("not a number", ("retention.ms", SET, "many")),
        ("below the limit", ("retention.ms", SET, "-2")),
        ("null", ("retention.ms", SET, None)),
        ("a key twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
        ("good and bad", ("retention.ms", SET, "77"), ("segment.bytes", SET, "0")),
        ("lag", ("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")),
        ("throttled", ("leader.replication.throttled.replicas", SET, "0:1,1:1")),
        ("throttled wrongly", ("leader.replication.throttled.replicas", SET, "x")),
        ("nothing",),
    )
    for label, *configs in rows:
        _alter(side, label, TOPIC, name, *configs, version=version)
        _describe(side, f"{label}: then", 4, TOPIC, name, keys=[
            "retention.ms", "segment.bytes", "cleanup.policy", "flush.ms",
            "leader.replication.throttled.replicas"])
    if version >= 1:
        long = ",".join(f"{number}:1" for number in range(8000))
        _alter(side, "too long", TOPIC, name,
               ("leader.replication.throttled.replicas", SET, long))
    _alter(side, "dry", TOPIC, name, ("retention.ms", SET, "9"), validate_only=True)
    _describe(side, "dry: then", 4, TOPIC, name, keys=["retention.ms"])
    _alter(side, "missing", TOPIC, side.name("missing"), ("retention.ms", SET, "9"))
    _alter(side, "missing and wrong", TOPIC, side.name("missing"), ("retention.ms", SET, "x"))
    _alter(side, "bad name", TOPIC, "a b", ("retention.ms", SET, "9"))
    _alter(side, "no name", TOPIC, "", ("retention.ms", SET, "9"))
    _alter(side, "unknown type", 3, "x", ("retention.ms", SET, "9"))
    row = {"resource_type": TOPIC, "resource_name": name,
           "configs": [{"name": "retention.ms", "config_operation": SET, "value": "11"}]}
    side.ask("a resource twice", INCREMENTAL, version, resources=[row, row])
    other = {**row, "resource_name": side.name("missing")}
    side.ask("two resources", INCREMENTAL, version, resources=[row, other])


@pytest.mark.parametrize("version", range(2))
def test_incremental_alter_configs_of_topics_matches_kafka(kafka, target, version):
    compare(kafka, target, _alter_topic, version)


def _alter_legacy(side: Side, version: int) -> None:
    name = side.topic("replaced", 1, retention_ms=1000, flush_ms=100)

    def alter(label, kind, resource, *rows, **more):
        side.ask(label, ALTER_CONFIGS, version, resources=[
            {"resource_type": kind, "resource_name": resource, "configs": [
                {"name": key, "value": value} for key, value in rows]}], **more)
        side.settle()
        _describe(side, f"{label}: then", 4, TOPIC, name, keys=["retention.ms", "flush.ms"])

    alter("one stays", TOPIC, name, ("flush.ms", "200"))
    alter("dry", TOPIC, name, ("flush.ms", "300"), validate_only=True)
    alter("null", TOPIC, name, ("flush.ms", None))
    alter("wrong", TOPIC, name, ("flush.ms", "x"))
    alter("unknown", TOPIC, name, ("no.such", "x"))
    alter("twice", TOPIC, name, ("flush.ms", "1"), ("flush.ms", "2"))
    alter("none", TOPIC, name)
    alter("missing", TOPIC, side.name("missing"), ("flush.ms", "1"))
    alter("logger", LOGGER, "1", ("root", "INFO"))
    alter("type", 3, "1", ("root", "INFO"))
    alter("other broker", BROKER, "7", ("log.retention.ms", "1000"))
    alter("fixed", BROKER, "1", ("node.id", "1"))
    alter("group", GROUP, side.name("group"), ("consumer.session.timeout.ms", "50000"))


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_matches_kafka(kafka, target, version):
    compare(kafka, target, _alter_legacy, version)


def _alter_broker(side: Side) -> None:
    name = side.topic("inheriting")
    keys = ["log.retention.ms", "log.retention.hours", "log.segment.bytes", "log.roll.ms",
            "log.cleanup.policy", "some.plugin.setting", "log.flush.interval.ms"]
    inherited = ["retention.ms", "segment.bytes", "segment.ms", "cleanup.policy", "flush.ms"]

    def alter(label, resource, *rows, **more):
        _alter(side, label, BROKER, resource, *rows, **more)
        _describe(side, f"{label}: broker", 4, BROKER, "1", keys=keys)
        _describe(side, f"{label}: cluster", 4, BROKER, "", drop=ELR)
        _describe(side, f"{label}: topic", 4, TOPIC, name, keys=inherited)

    alter("cluster", "", ("log.retention.ms", SET, "5000000"))
    alter("broker", "1", ("log.retention.ms", SET, "6000000"))
    alter("cluster again", "", ("log.retention.ms", SET, "7000000"),
          ("log.segment.bytes", SET, "2097152"))
    alter("broker's goes", "1", ("log.retention.ms", DELETE, None))
    alter("append", "", ("log.cleanup.policy", APPEND, "compact"))
    alter("flush", "1", ("log.flush.interval.ms", SET, "1234"))
    alter("dry", "", ("log.roll.ms", SET, "7000000"), validate_only=True)
    alter("wrong", "", ("log.roll.ms", SET, "many"))
    alter("below", "", ("log.roll.ms", SET, "0"))
    alter("fixed", "1", ("log.dirs", SET, "/x"))
    alter("hours are fixed", "1", ("log.retention.hours", SET, "1"))
    alter("one broker only", "", ("listeners", SET, "PLAINTEXT://:1"))
    alter("keystore", "1", ("ssl.keystore.location", SET, "/x"))
    alter("append to no list", "1", ("log.roll.ms", APPEND, "1"))
    alter("unknown operation", "1", ("log.roll.ms", 9, "1"))
    alter("unknown", "1", ("some.plugin.setting", SET, "v"))
    alter("unknown goes", "1", ("some.plugin.setting", DELETE, None))
    alter("threads", "1", ("background.threads", SET, "500"))
    alter("other broker", "7", ("log.roll.ms", SET, "7000000"))
    alter("no number", "x", ("log.roll.ms", SET, "7000000"))
    alter("null", "1", ("log.roll.ms", SET, None))
    alter("all go", "", ("log.retention.ms", DELETE, None), ("log.segment.bytes", DELETE, None),
          ("log.cleanup.policy", DELETE, None))
    alter("all of the broker go", "1", ("log.flush.interval.ms", DELETE, None))


def test_broker_settings_and_topic_defaults_equal_kafkas(kafka, target):
    compare(kafka, target, _alter_broker)


def _alter_others(side: Side) -> None:
    group, subscription = side.name("group"), side.name("subscription")

    def alter(label, kind, name, *rows, **more):
        _alter(side, label, kind, name, *rows, **more)
        if name:
            _describe(side, f"{label}: then", 4, kind, name)

    alter("session", GROUP, group, ("consumer.session.timeout.ms", SET, "50000"))
    alter("too short", GROUP, group, ("consumer.session.timeout.ms", SET, "1"))
    alter("too long", GROUP, group, ("consumer.session.timeout.ms", SET, "99999999"))
    alter("beat", GROUP, group, ("consumer.heartbeat.interval.ms", SET, "15000"))
    alter("no number", GROUP, group, ("consumer.heartbeat.interval.ms", SET, "x"))
    alter("unknown", GROUP, group, ("no.such", SET, "1"))
    alter("reset", GROUP, group, ("share.auto.offset.reset", SET, "by_duration:PT1H"))
    alter("wrong reset", GROUP, group, ("share.auto.offset.reset", SET, "sometime"))
    alter("isolation", GROUP, group, ("share.isolation.level", SET, "read_committed"))
    alter("append", GROUP, group, ("share.isolation.level", APPEND, "x"))
    alter("delete", GROUP, group, ("consumer.session.timeout.ms", DELETE, None))
    alter("no group", GROUP, "", ("consumer.session.timeout.ms", SET, "50000"))
    alter("metrics", SUBSCRIPTION, subscription, ("metrics", SET, "a.,b."),
          ("interval.ms", SET, "1000"), ("match", SET, "client_id=x.*"))
    alter("unknown metric setting", SUBSCRIPTION, subscription, ("no.such", SET, "1"))
    alter("interval", SUBSCRIPTION, subscription, ("interval.ms", SET, "1"))
    alter("match", SUBSCRIPTION, subscription, ("match", SET, "nobody=x"))
    alter("no subscription", SUBSCRIPTION, "", ("interval.ms", SET, "1000"))
    for label, name, row in (
            ("set root", "1", ("root", SET, "INFO")), ("no level", "1", ("root", SET, "LOUD")),
            ("unknown logger", "1", ("no.such.logger", SET, "INFO")),
            ("root goes", "1", ("root", DELETE, None)),
            ("logger append", "1", ("root", APPEND, "INFO")),
            ("other broker", "7", ("root", SET, "INFO")), ("no number", "x", ("root", SET, "INFO")),
            ("empty", "", ("root", SET, "INFO"))):
        _alter(side, f"logger: {label}", LOGGER, name, row)
    _describe(side, "root", 4, LOGGER, "1", keys=["root"])
    for row in (("consumer.session.timeout.ms", DELETE, None),
                ("consumer.heartbeat.interval.ms", DELETE, None),
                ("share.auto.offset.reset", DELETE, None),
                ("share.isolation.level", DELETE, None)):
        _alter(side, f"cleanup {row[0]}", GROUP, group, row)
    listed = ask(side.connection, RESOURCES, 0)
    side.note("subscriptions", [row for row in listed["config_resources"]
                                if row["resource_name"] == subscription])
    for row in ("metrics", "interval.ms", "match"):
        _alter(side, f"cleanup {row}", SUBSCRIPTION, subscription, (row, DELETE, None))


def test_settings_of_groups_subscriptions_and_loggers_are_kafkas(kafka, target):
    compare(kafka, target, _alter_others)


def _list_resources(side: Side) -> None:
    known = side.topic("listed"), side.name("group"), side.name("subscription")
    _alter(side, "group", GROUP, known[1], ("consumer.session.timeout.ms", SET, "50000"))
    _alter(side, "subscription", SUBSCRIPTION, known[2], ("interval.ms", SET, "1000"))
    for types in ([], [TOPIC], [BROKER], [LOGGER], [GROUP], [SUBSCRIPTION], [TOPIC, BROKER], [3],
                  [TOPIC, 99]):
        answer = ask(side.connection, RESOURCES, 1, resource_types=types)
        answer["config_resources"] = [
            row for row in answer["config_resources"]
            if row["resource_type"] in (BROKER, LOGGER) or row["resource_name"] in known]
        answer["config_resources"].sort(key=lambda row: row["resource_type"])
        side.note(f"types {types}", answer)
    listed = ask(side.connection, RESOURCES, 0)
    side.note("version 0", [row for row in listed["config_resources"]
                            if row["resource_name"] in known])


def test_list_config_resources_matches_kafka(kafka, target):
    compare(kafka, target, _list_resources)


# ---- partitions and records -------------------------------------------------------------------


def _create_partitions(side: Side, version: int) -> None:
    name, other = side.topic("growing"), side.topic("other", 2)

    def create(label, *rows, **more):
        side.ask(label, CREATE_PARTITIONS, version, timeout=5000, topics=[
            {"name": topic, "count": count, "assignments": places and [
                {"broker_ids": brokers} for brokers in places]} for topic, count, places in rows],
            **more)
        side.settle()
        side.ask(f"{label}: then", raw.METADATA, 12, topics=[{"name": name, "topic_id": None}],
                 allow_auto_topic_creation=False)

    create("dry", (name, 3, None), validate_only=True)
    create("more", (name, 3, None))
    create("the same", (name, 3, None))
    create("fewer", (name, 2, None))
    create("zero", (name, 0, None))
    create("negative", (name, -1, None))
    create("missing", (side.name("missing"), 3, None))
    create("placed", (name, 5, [[1], [1]]))
    create("too few places", (name, 7, [[1]]))
    create("unknown broker", (name, 6, [[7]]))
    create("two replicas", (name, 6, [[1, 7]]))
    create("a broker twice", (name, 6, [[1, 1]]))
    create("no replicas", (name, 6, [[]]))
    create("twice", (name, 6, None), (name, 7, None))
    create("good and bad", (name, 6, None), (other, 1, None))
    create("nothing")
    side.append(name, raw.batch([raw.record(b"k", b"v")]), 5)


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_matches_kafka(kafka, target, version):
    compare(kafka, target, _create_partitions, version)


def _delete_records(side: Side, version: int) -> None:
    name, compacted = side.topic("trimmed", 2), side.topic("compacted", 1, cleanup_policy="compact")
    both = side.topic("both", 1, cleanup_policy="compact,delete")
    for topic in (name, compacted, both):
        for _ in range(3):
            side.append(topic, raw.batch([raw.record(b"k", b"v%d" % number, offset_delta=number)
                                          for number in range(4)]))

    def delete(label, *rows):
        topics = {}
        for topic, index, offset in rows:
            topics.setdefault(topic, []).append({"partition_index": index, "offset": offset})
        side.ask(label, DELETE_RECORDS, version, timeout=5000, topics=[
            {"name": topic, "partitions": cells} for topic, cells in topics.items()])
        side.ask(f"{label}: then", raw.LIST_OFFSETS, 6, replica_id=-1, topics=[{
            "name": name, "partitions": [{"partition_index": 0, "timestamp": -2},
                                         {"partition_index": 1, "timestamp": -2}]}])

    delete("inside a batch", (name, 0, 5))
    delete("the same", (name, 0, 5))
    delete("lower", (name, 0, 2))
    delete("beyond", (name, 0, 13))
    delete("below", (name, 0, -2))
    delete("empty", (name, 1, 0))
    delete("empty, all", (name, 1, -1))
    delete("missing partition", (name, 2, 0))
    delete("missing topic", (side.name("missing"), 0, 0))
    delete("compacted", (compacted, 0, 1))
    delete("compacted and deleted", (both, 0, 1))
    delete("many", (name, 0, 6), (name, 1, 9), (both, 0, 4))
    delete("all", (name, 0, -1))
    delete("all again", (name, 0, -1))
    delete("none")


@pytest.mark.parametrize("version", range(3))
def test_delete_records_matches_kafka(kafka, target, version):
    compare(kafka, target, _delete_records, version)


def _elect(side: Side, version: int) -> None:
    name = side.topic("elected", 2)
    for election in (0, 1, 7) if version >= 1 else (0,):
        for label, rows in (
                ("one", [{"topic": name, "partitions": [0, 1]}]),
                ("missing partition", [{"topic": name, "partitions": [0, 9]}]),
                ("missing topic", [{"topic": side.name("missing"), "partitions": [0]}]),
                ("none", [])):
            more = {"election_type": election} if version >= 1 else {}
            side.ask(f"{label} {election}", ELECT_LEADERS, version, timeout=5000,
                     topic_partitions=rows, **more)


@pytest.mark.parametrize("version", range(3))
def test_elect_leaders_matches_kafka(kafka, target, version):
    compare(kafka, target, _elect, version)


def _reassign(side: Side, version: int) -> None:
    name = side.topic("moved", 2)
    missing = side.name("missing")
    for factor in (True, False) if version >= 1 else (True,):
        more = {"allow_replication_factor_change": factor} if version >= 1 else {}
        for label, topic, index, replicas in (
                ("same", name, 0, [1]), ("cancel", name, 0, None), ("unknown", name, 0, [7]),
                ("more", name, 0, [1, 7]), ("twice", name, 0, [1, 1]), ("none", name, 0, []),
                ("missing partition", name, 9, [1]), ("missing topic", missing, 0, [1]),
                ("cancel a missing one", missing, 0, None)):
            side.ask(f"{label} {factor}", REASSIGN, version, timeout=5000, topics=[
                {"name": topic, "partitions": [
                    {"partition_index": index, "replicas": replicas}]}], **more)
        side.ask(f"nothing {factor}", REASSIGN, version, timeout=5000, topics=[], **more)
    for label, topics in (
            ("all", None), ("one", [{"name": name, "partition_indexes": [0, 9]}]),
            ("missing", [{"name": missing, "partition_indexes": [0]}]), ("none", [])):
        side.ask(f"list {label}", REASSIGNMENTS, 0, timeout=5000, topics=topics)


@pytest.mark.parametrize("version", range(2))
def test_reassignments_match_kafka(kafka, target, version):
    compare(kafka, target, _reassign, version)


def _producers(side: Side) -> None:
    name = side.topic("produced", 2)
    for sequence in (0, 2):
        side.append(name, raw.batch(
            [raw.record(b"k", b"v"), raw.record(b"k", b"w", offset_delta=1)], producer_id=4711,
            producer_epoch=3, base_sequence=sequence))
    answer = ask(side.connection, PRODUCERS, 0, topics=[
        {"name": name, "partition_indexes": [0, 1, 9]},
        {"name": side.name("missing"), "partition_indexes": [0]},
        {"name": "a b", "partition_indexes": [0]}])
    for topic in answer["topics"]:
        for partition in topic["partitions"]:
            for producer in partition["active_producers"]:
                assert producer.pop("last_timestamp") > 0
    side.note("producers", answer)


def test_describe_producers_matches_kafka(kafka, target):
    compare(kafka, target, _producers)


# ---- directories and quorum -------------------------------------------------------------------


def _log_dirs(side: Side, version: int) -> None:
    name = side.topic("stored", 2)
    side.append(name, raw.batch([raw.record(b"k", b"v")]))

    def describe(label, topics):
        answer = ask(side.connection, LOG_DIRS, version, topics=topics)
        for row in answer["results"]:
            side.path = row.pop("log_dir")
            for key in ("total_bytes", "usable_bytes"):
                assert (row.pop(key) > 0) if key in row else version < 4
            row["topics"] = [topic for topic in row["topics"] if topic["name"] == name]
        side.note(label, answer)

    describe("all", None)
    describe("one", [{"topic": name, "partitions": [0]}])
    describe("missing", [{"topic": name, "partitions": [9]},
                         {"topic": side.name("missing"), "partitions": [0]}])
    describe("none", [])


@pytest.mark.parametrize("version", range(1, 6))
def test_describe_log_dirs_matches_kafka(kafka, target, version):
    compare(kafka, target, _log_dirs, version)


def _alter_log_dirs(side: Side, version: int) -> None:
    name, missing = side.topic("placed", 2), side.name("missing")
    path = ask(side.connection, LOG_DIRS, 4, topics=[])["results"][0]["log_dir"]
    for label, where, topic, index in (
            ("where it is", path, name, 0), ("no directory", "/no/such/dir", name, 0),
            ("missing partition", path, name, 9), ("no directory, no topic", "/no", missing, 0),
            ("missing topic", path, missing, 0)):
        side.ask(label, ALTER_LOG_DIRS, version, dirs=[
            {"path": where, "topics": [{"name": topic, "partitions": [index]}]}])
    side.ask("nothing", ALTER_LOG_DIRS, version, dirs=[])


@pytest.mark.parametrize("version", range(1, 3))
def test_alter_replica_log_dirs_matches_kafka(kafka, target, version):
    compare(kafka, target, _alter_log_dirs, version)


def _cordoned(side: Side) -> None:
    name = side.topic("stored", 1)
    path = ask(side.connection, LOG_DIRS, 4, topics=[])["results"][0]["log_dir"]

    def cordon(label, text, row=0):
        side.ask(label, INCREMENTAL, 1, validate_only=False, resources=[
            {"resource_type": 4, "resource_name": "1", "configs": [
                {"name": "cordoned.log.dirs", "config_operation": row, "value": text}]}])

    def created(topic, dry=True, **more):
        return ask(side.connection, raw.CREATE_TOPICS, 7, timeout=5000, validate_only=dry, topics=[
            {"name": topic, "num_partitions": -1, "replication_factor": -1, "assignments": [],
             "configs": [], **more}])["topics"][0]["error_code"]

    def settled(error):
        # Kafka's controller is informed by a heartbeat.
        until(lambda: created(side.name("tried")) == error)

    cordon("another directory", "/no/such")
    cordon("all and another", f"*,{path}")
    try:
        cordon("all", "*")
        settled(INVALID_REPLICATION_FACTOR)
        side.ask("new partitions", CREATE_PARTITIONS, 3, timeout=5000, validate_only=False,
                 topics=[{"name": name, "count": 2, "assignments": None}])
        side.note("by hand", created(side.name("by hand"), False, assignments=[
            {"partition_index": 0, "broker_ids": [1]}]))
        answer = ask(side.connection, LOG_DIRS, 5, topics=[])
        side.note("described", [row["is_cordoned"] for row in answer["results"]])
        side.ask("moved there", ALTER_LOG_DIRS, 2, dirs=[
            {"path": path, "topics": [{"name": name, "partitions": [0]}]}])
        side.ask("of nothing there", ALTER_LOG_DIRS, 2, dirs=[
            {"path": path, "topics": [{"name": side.name("missing"), "partitions": [0]}]}])
    finally:
        cordon("none", None, 1)
        settled(0)


def test_cordoned_directories_are_kafkas(kafka, target):
    compare(kafka, target, _cordoned)


def _quorum(side: Side, version: int) -> None:
    def describe(label, *topics):
        answer = ask(side.connection, QUORUM, version, topics=[
            {"topic_name": name, "partitions": [{"partition_index": index} for index in indexes]}
            for name, indexes in topics])
        for topic in answer["topics"]:
            for row in topic["partitions"]:
                ours = row["error_code"] == 0
                assert (row.pop("leader_epoch") > 0) == ours
                end = row.pop("high_watermark")
                for voter in row["current_voters"]:
                    assert voter.pop("log_end_offset") == end
                    for key in ("last_fetch_timestamp", "last_caught_up_timestamp"):
                        assert voter.pop(key, 1) > 0
        side.note(label, answer)

    describe("the log", ("__cluster_metadata", [0]))
    describe("another partition", ("__cluster_metadata", [1]))
    describe("two partitions", ("__cluster_metadata", [0, 1]))
    describe("another topic", ("x", [0]))
    describe("both", ("__cluster_metadata", [0]), ("x", [0]))
    describe("no partition", ("__cluster_metadata", []))


@pytest.mark.parametrize("version", range(3))
def test_describe_quorum_matches_kafka(kafka, target, version):
    compare(kafka, target, _quorum, version)


def _features(side: Side, version: int) -> None:
    for label, feature, level, kind in (
            ("the same", "metadata.version", NEWEST_VERSION, 1),
            ("above", "metadata.version", NEWEST_VERSION + 1, 1),
            ("below", "metadata.version", 6, 3), ("negative", "metadata.version", -1, 3),
            ("down without leave", "metadata.version", 8, 1), ("down", "metadata.version", 8, 2),
            ("down unsafely", "metadata.version", 8, 3),
            ("upgrade type", "metadata.version", NEWEST_VERSION, 9),
            ("unknown", "no.such.feature", 1, 1), ("off", "metadata.version", 0, 3)):
        more = {"upgrade_type": kind} if version >= 1 else {}
        if version == 0 and kind != 1:
            more = {"allow_downgrade": True}
        for dry in (True, False) if version >= 1 else (False,):
            side.ask(f"{label} {dry}", FEATURES, version, timeout=5000, feature_updates=[
                {"feature": feature, "max_version_level": level, **more}],
                **({"validate_only": dry} if version >= 1 else {}))
    side.ask("nothing", FEATURES, version, timeout=5000, feature_updates=[])


@pytest.mark.parametrize("version", range(3))
def test_update_features_matches_kafka(kafka, target, version):
    compare(kafka, target, _features, version)
