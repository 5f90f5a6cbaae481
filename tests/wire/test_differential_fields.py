"""Each field of each request and version changed in turn, sent to Apache Kafka and to brokerd.

Permitted differences, with reasons, are in docs/reference/differences.md.
"""

import random
import time

import pytest

from tests.wire import fields, raw
from tests.wire.messages import ask, decode
from tests.wire.mixed import BASE_MS
from tests.wire.raw import Closed, Connection
from tests.wire.sides import Side, compare, once

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
ANSWER_WAIT_S = 5
SETTLE_S = 0.3
# Kafka answers from a copy of its metadata that lags behind the change.
CHANGING = {19, 20, 33, 37, 44, 45, 49, 57}
SOME = 25


class World:
    """The objects of one side's requests."""

    def __init__(self, side: Side):
        self.topic = side.topic("there", 2)
        self.id = side.id_of(self.topic)
        self.fresh = side.name("fresh")
        self.missing = side.name("missing")
        self.group = side.name("group")
        for number in range(3):
            side.append(self.topic, _batch(b"%d" % number))
        _wait_for_coordinator(side, self.group)


def _wait_for_coordinator(side: Side, group: str) -> None:
    """Create the offsets topic on both sides by looking up a coordinator."""
    for _ in range(100):
        ask(side.connection, 10, 3, key=group, key_type=0)
        if ask(side.connection, 9, 7, group_id=group, topics=[], require_stable=False)[
                "error_code"] == 0:
            return
        time.sleep(0.1)


def _batch(value: bytes) -> bytes:
    return raw.batch([raw.record(b"k", value)], base_timestamp=BASE_MS, max_timestamp=BASE_MS)


def _produce(world, version):
    where = {"topic_id": fields.uuid.UUID(world.id)} if version >= 13 else {"name": world.topic}
    return {"acks": -1, "timeout": 1000, "transactional_id": None, "topic_data": [
        {**where, "partition_data": [{"index": 0, "records": _batch(b"v")}]}]}


def _fetch(world, version):
    where = {"topic_id": fields.uuid.UUID(world.id)} if version >= 13 else {"topic": world.topic}
    return {"max_wait": 10, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0,
            "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [],
            **({"replica_id": -1} if version < 15 else {}),
            "topics": [{**where, "partitions": [
                {"partition": 0, "current_leader_epoch": -1, "last_fetched_epoch": -1,
                 "log_start_offset": -1, "partition_max_bytes": 1 << 20, "fetch_offset": 0}]}]}


def _alter(kind, name, setting, value, incremental):
    row = {"name": setting, "value": value, **({"config_operation": 0} if incremental else {})}
    return {"validate_only": False, "resources": [
        {"resource_type": kind, "resource_name": name, "configs": [row]}]}


def _offsets(world, version):
    topic = {"name": world.topic, "partition_indexes": [0, 1]}
    if version < 8:
        return {"group_id": world.group, "topics": [topic]}
    return {"groups": [{"group_id": world.group, "topics": [topic]}]}


# API key -> the fields of a valid request. Joins and commits are covered by the groups' tests.
VALID = {
    0: _produce,
    1: _fetch,
    2: lambda w, v: {"replica_id": -1, "isolation_level": 0, "timeout": 1000, "topics": [
        {"name": w.topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
    3: lambda w, v: {"topics": [{"name": w.topic, "topic_id": None}],
                     "allow_auto_topic_creation": False},
    9: _offsets,
    15: lambda w, v: {"groups": [w.group], "include_authorized_operations": False},
    18: lambda w, v: {"client_software_name": "name", "client_software_version": "1"},
    19: lambda w, v: {"timeout": 5000, "validate_only": True, "topics": [
        {"name": w.fresh, "num_partitions": 1, "replication_factor": 1, "assignments": [],
         "configs": [{"name": "retention.ms", "value": "1000"}]}]},
    20: lambda w, v: {"timeout": 5000, "topics": [{"name": w.missing, "topic_id": None}]}
    if v >= 6 else {"timeout": 5000, "topic_names": [w.missing]},
    21: lambda w, v: {"timeout": 5000, "topics": [
        {"name": w.topic, "partitions": [{"partition_index": 0, "offset": 1}]}]},
    22: lambda w, v: {"transactional_id": None, "transaction_timeout": 1000},
    23: lambda w, v: {"replica_id": -2, "topics": [{"topic": w.topic, "partitions": [
        {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}]},
    32: lambda w, v: {"include_synonyms": True, "resources": [
        {"resource_type": 2, "resource_name": w.topic, "configuration_keys": ["segment.ms"]}]},
    33: lambda w, v: _alter(2, w.topic, "retention.ms", "900", False),
    34: lambda w, v: {"dirs": [{"path": "/no/such", "topics": [
        {"name": w.topic, "partitions": [0]}]}]},
    35: lambda w, v: {"topics": [{"topic": w.topic, "partitions": [0]}]},
    37: lambda w, v: {"timeout": 5000, "validate_only": True, "topics": [
        {"name": w.topic, "count": 3, "assignments": [{"broker_ids": [1]}]}]},
    42: lambda w, v: {"groups_names": [w.group]},
    43: lambda w, v: {"timeout": 5000, **({"election_type": 0} if v >= 1 else {}),
                      "topic_partitions": [{"topic": w.topic, "partitions": [0]}]},
    44: lambda w, v: _alter(2, w.topic, "retention.ms", "900", True),
    45: lambda w, v: {"timeout": 5000, "topics": [{"name": w.topic, "partitions": [
        {"partition_index": 0, "replicas": [1]}]}]},
    46: lambda w, v: {"timeout": 5000, "topics": [
        {"name": w.topic, "partition_indexes": [0]}]},
    47: lambda w, v: {"group_id": w.group, "topics": [
        {"name": w.topic, "partitions": [{"partition_index": 0}]}]},
    48: lambda w, v: {"strict": False, "components": [
        {"entity_type": "user", "match_type": 0, "match": w.missing}]},
    49: lambda w, v: {"validate_only": True, "entries": [
        {"entity": [{"entity_type": "user", "entity_name": w.missing}],
         "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]}]},
    50: lambda w, v: {"users": [{"name": w.missing}]},
    55: lambda w, v: {"topics": [{"topic_name": "__cluster_metadata", "partitions": [
        {"partition_index": 0}]}]},
    57: lambda w, v: {"timeout": 5000, "feature_updates": [
        {"feature": "transaction.version", "max_version_level": 2, "upgrade_type": 1}
        if v >= 1 else {"feature": "transaction.version", "max_version_level": 2}]},
    60: lambda w, v: {},
    61: lambda w, v: {"topics": [{"name": w.topic, "partition_indexes": [0]}]},
    74: lambda w, v: {"resource_types": [16]} if v >= 1 else {},
    75: lambda w, v: {"topics": [{"name": w.topic}], "response_partition_limit": 10,
                      "cursor": None},
}
VERSIONS = {0: (3, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 9: (1, 10), 15: (0, 6), 18: (0, 4),
            19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 32: (1, 4), 33: (0, 2),
            34: (1, 2), 35: (1, 5), 37: (0, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1),
            46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 55: (0, 2), 57: (0, 2),
            60: (0, 2), 61: (0, 0), 74: (0, 1), 75: (0, 0)}


# Fields with these prefixes differ; docs/reference/differences.md has the reasons.
DIFFERS = {
    0: ("timeout ", "topic_data repeated", "topic_data three", "topic_data.partition_data repeated",
        "topic_data.partition_data three", "topic_data.partition_data.records null"),
    1: ("isolation_level ", "max_bytes -", "topics.partitions.partition_max_bytes -",
        "session_id ", "replica_state.replica_id ", "replica_id "),
    2: ("isolation_level ",),
    3: ("topics.name 'no-such-name'", "topics.name null"),
    22: ("transactional_id ",),
    23: ("topics.partitions.leader_epoch -2147483648",),
    33: ("resources repeated", "resources three"),
    34: ("dirs.topics.name 'xxx",),
    44: ("resources.configs.config_operation ",),
    # The first ten partitions of all topics belong to other tests.
    75: ("topics.name ''", "topics empty"),
}
REPEATS = (" repeated", " three times")
# These timeouts may expire or not, depending on the machine's load.
SHORT = ("timeout 1", "timeout 99")


def shown(key: int, answer, names):
    """Remove unrelated parts: other tests' topics, directories, extra fields of one side."""
    if not isinstance(answer, dict):
        return answer
    if key in (3, 75):
        answer["topics"] = [row for row in answer["topics"]
                            if row["error_code"] or row["name"] in names]
        answer.pop("next_cursor", None)
    if key == 19:
        for row in answer["topics"]:
            row.pop("topic_id", None)
            row["configs"] = [config for config in row.get("configs") or []
                              if config["name"] != "min.insync.replicas"]
    if key == 32:
        for row in answer["results"]:
            row["configs"] = [{**config, "documentation": None} for config in row["configs"]
                              if config["name"] != "min.insync.replicas"]
    if key == 43:
        answer["replica_election_results"] = [
            row for row in answer["replica_election_results"] if row["topic"] in names]
    if key == 74:
        answer["config_resources"] = [row for row in answer["config_resources"]
                                      if row["resource_name"] in {*names, "1"}]
        answer["config_resources"].sort(key=lambda row: row["resource_type"])
    if key == 48:
        answer["entries"] = [row for row in answer["entries"] or ()
                             if row["entity"][0]["entity_name"] in names]
    if key == 18:
        answer = {"error_code": answer["error_code"]}
    if key == 22 and answer["error_code"] == 0:
        answer["producer_id"] = 0
    if key == 35:
        for row in answer["results"]:
            for name in ("log_dir", "total_bytes", "usable_bytes"):
                row.pop(name, None)
            row["topics"] = [topic for topic in row["topics"] if topic["name"] in names]
    if key == 61:
        for cell in (cell for topic in answer["topics"] for cell in topic["partitions"]):
            for producer in cell["active_producers"]:
                producer.pop("last_timestamp")
    if key == 55:
        for row in (row for topic in answer["topics"] for row in topic["partitions"]):
            for name in ("leader_epoch", "high_watermark", "current_voters"):
                row.pop(name)
    return answer


def send(side: Side, label: str, key: int, version: int, body: bytes) -> None:
    """Send one request; record a response, a closed connection or none within ANSWER_WAIT_S."""
    try:
        answer = decode(key, version, side.connection.call(key, version, body))
    except (Closed, TimeoutError) as error:
        answer = "closed" if isinstance(error, Closed) else "no answer"
        side.connection.close()
        side.connection = Connection(side.port, wait_s=ANSWER_WAIT_S)
    if key in CHANGING and side.broker.name == "kafka":
        time.sleep(SETTLE_S)
    answer = shown(key, answer, side.stems)
    # docs/reference/differences.md: ours answers duplicates once.
    side.note(label, once(answer) if label.endswith(REPEATS) else answer)


def _walk(side: Side, key: int, version: int, seed: int, some: int | None) -> None:
    side.connection.close()
    side.connection = Connection(side.port, wait_s=ANSWER_WAIT_S)
    world = World(side)
    if key == 22:
        _wait_for_producer_ids(side)
    changed = [(label, body) for label, body in fields.requests(
        key, version, VALID[key](world, version))
        if not label.startswith(DIFFERS.get(key, ()) + SHORT)]
    generator = random.Random(seed)
    if some is not None and len(changed) > some:
        changed = changed[:1] + generator.sample(changed[1:], some)
    for label, body in changed:
        send(side, f"v{version} {label}", key, version, body)


def _wait_for_producer_ids(side: Side) -> None:
    """Kafka returns error 14 until it has its first block of producer ids."""
    for _ in range(100):
        if ask(side.connection, 22, 4, transactional_id=None, transaction_timeout=1000,
               producer_id=-1, producer_epoch=-1)["error_code"] == 0:
            return
        time.sleep(0.1)


def _versions(key: int) -> list[int]:
    low, high = VERSIONS[key]
    return list(range(low, high + 1))


@pytest.mark.parametrize("key", VALID)
def test_request_with_one_mutated_field_matches_kafka(kafka, target, random_source, key):
    version, seed = random_source.choice(_versions(key)), random_source.randrange(1 << 31)
    compare(kafka, target, _walk, key, version, seed, SOME)


@pytest.mark.slow
@pytest.mark.parametrize("key", VALID)
def test_every_mutated_field_of_every_version_matches_kafka(kafka, target, key):
    for version in _versions(key):
        compare(kafka, target, _walk, key, version, 0, None)
