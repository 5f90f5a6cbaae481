"""The same requests to Apache Kafka and to brokerd: versions, metadata, topics, ids.

Permitted differences, with reasons, are in docs/reference/differences.md.
"""

import time
import uuid

import pytest

from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.sides import Side, compare

pytestmark = pytest.mark.kafka
LOADING = 14
DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS = 60, 75
SERVED = {0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 18: (0, 4), 19: (2, 7), 20: (1, 6),
          22: (0, 5), 23: (2, 4), 60: (0, 2), 75: (0, 0)}


@pytest.mark.parametrize("version", range(5))
def test_served_apis_are_advertised_at_kafkas_ranges(kafka, target, version):
    ranges = []
    for broker in (kafka, target):
        with Connection(broker.port) as connection:
            answer = ask(connection, raw.API_VERSIONS, version, client_software_name="test",
                         client_software_version="1")
        assert answer["error_code"] == 0
        ranges.append({row["api_key"]: (row["min_version"], row["max_version"])
                       for row in answer["api_keys"]})
    theirs, ours = ranges
    assert {key: ours.get(key) for key in SERVED} == {key: theirs[key] for key in SERVED}
    assert all(theirs.get(key) == served for key, served in ours.items())


def _metadata(side: Side, version: int) -> None:
    one, two = side.topic("one"), side.topic("two", 3)
    missing = side.name("missing")

    def ask_for(label, topics, **more):
        side.ask(label, raw.METADATA, version, topics=topics, allow_auto_topic_creation=False,
                 **more)

    ask_for("both", [{"name": one}, {"name": two}])
    if version >= 4:
        # In earlier versions a request could not prevent creation;
        # docs/reference/differences.md describes the response.
        ask_for("missing", [{"name": missing}])
        ask_for("mixed", [{"name": one}, {"name": missing}, {"name": "x/y"}])
    ask_for("bad name", [{"name": "a b"}])
    ask_for("twice", [{"name": one}, {"name": one}])
    if version >= 1:
        ask_for("none", [])
    if version >= 8:
        ask_for("operations of a topic", [{"name": one}],
                include_topic_authorized_operations=True)
        ask_for("operations of what is not there", [{"name": missing}, {"name": "a b"}],
                include_topic_authorized_operations=True)
    if version >= 12:
        ask_for("operations of an unknown id",
                [{"name": None, "topic_id": uuid.UUID(int=12345)}],
                include_topic_authorized_operations=True)
    if 8 <= version <= 10:
        ask_for("operations of the cluster", [{"name": one}],
                include_cluster_authorized_operations=True)
    if version >= 12:
        ask_for("by id", [{"name": None, "topic_id": uuid.UUID(side.id_of(two))}])
        ask_for("unknown id", [{"name": None, "topic_id": uuid.UUID(int=12345)}])
        ask_for("ids", [{"name": None, "topic_id": uuid.UUID(side.id_of(one))},
                        {"name": None, "topic_id": uuid.UUID(int=12345)}])
        ask_for("id and name", [{"name": one, "topic_id": uuid.UUID(side.id_of(two))}])
    if version == 10:
        ask_for("id before v12", [{"name": one, "topic_id": uuid.UUID(side.id_of(one))}])


@pytest.mark.parametrize("version", range(14))
def test_metadata_matches_kafka(kafka, target, version):
    compare(kafka, target, _metadata, version)


def _create(side: Side, version: int) -> None:
    row = {"num_partitions": 2, "replication_factor": 1}
    configs = [{"name": "retention.ms", "value": "1000"},
               {"name": "cleanup.policy", "value": "compact,delete"}]

    def create(label, *topics, **more):
        answer = side.ask(label, raw.CREATE_TOPICS, version, timeout=5000, topics=topics, **more)
        if version < 7 or answer is None:
            return
        for topic in answer["topics"]:
            if topic["topic_id"]:
                side.ids[topic["topic_id"]] = f"id of {side.stems[topic['name']]}"
                side.answers[-1] = (label, side.comparable(answer))

    plain = side.name("plain")
    create("plain", {**row, "name": plain})
    create("again", {**row, "name": plain})
    create("configs", {**row, "name": side.name("configs"), "configs": configs})
    create("dry", {**row, "name": side.name("dry"), "configs": configs}, validate_only=True)
    create("mixed", {**row, "name": side.name("m1")}, {**row, "name": "a b"},
           {**row, "name": side.name("m2"), "replication_factor": 9},
           {**row, "name": side.name("m3"), "num_partitions": 0},
           {**row, "name": side.name("m4"),
            "configs": [{"name": "no.such", "value": "1"}]})
    create("assigned", {"name": side.name("assigned"), "num_partitions": -1,
                        "replication_factor": -1, "assignments": [
                            {"partition_index": 0, "broker_ids": [1]},
                            {"partition_index": 1, "broker_ids": [1]}]})
    create("config without value", {**row, "name": side.name("null"),
                                    "configs": [{"name": "retention.ms", "value": None}]})
    create("defaults", {"name": side.name("defaults"), "num_partitions": -1,
                        "replication_factor": -1})
    create("nothing")


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_matches_kafka(kafka, target, version):
    compare(kafka, target, _create, version)


def _delete(side: Side, version: int) -> None:
    one, two, three = (side.topic(stem) for stem in ("one", "two", "three"))
    missing = side.name("missing")
    if version < 6:
        def delete(label, *names):
            side.ask(label, raw.DELETE_TOPICS, version, topic_names=list(names), timeout=5000)
    else:
        def delete(label, *names):
            side.ask(label, raw.DELETE_TOPICS, version, timeout=5000, topics=[
                {"name": None, "topic_id": name} if isinstance(name, uuid.UUID)
                else {"name": name, "topic_id": None} for name in names])
        identity = uuid.UUID(side.id_of(three))
        side.ask("name and id", raw.DELETE_TOPICS, version, timeout=5000,
                 topics=[{"name": three, "topic_id": identity}])
        side.ask("neither", raw.DELETE_TOPICS, version, timeout=5000,
                 topics=[{"name": None, "topic_id": None}])
        delete("by id", identity)
        delete("by id again", identity)
        delete("unknown id", uuid.UUID(int=12345))
    delete("one", one)
    delete("one again", one)
    delete("mixed", two, missing)
    delete("bad name", "a b")
    delete("nothing")


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics_matches_kafka(kafka, target, version):
    compare(kafka, target, _delete, version)


def _describe_cluster(side: Side, version: int) -> None:
    for operations in (False, True):
        side.ask(f"operations {operations}", DESCRIBE_CLUSTER, version,
                 include_cluster_authorized_operations=operations)
    if version >= 1:
        side.ask("controllers", DESCRIBE_CLUSTER, version, endpoint_type=2)
        side.ask("endpoint type 9", DESCRIBE_CLUSTER, version, endpoint_type=9)


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_matches_kafka(kafka, target, version):
    compare(kafka, target, _describe_cluster, version)


def _describe_partitions(side: Side) -> None:
    one, two = side.topic("a-one", 3), side.topic("b-two", 2)
    missing = side.name("c-missing")

    def describe(label, *names, limit=2000, cursor=None):
        side.ask(label, DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": name} for name in names],
                 response_partition_limit=limit, cursor=cursor)

    describe("both", one, two)
    describe("with a missing one", one, missing)
    describe("bad name", "a b")
    describe("twice", one, one)
    for limit in (1, 2, 3, 4, 0, -1):
        describe(f"limit {limit}", one, two, limit=limit)
    for topic, partition in ((one, 0), (one, 2), (one, 9), (two, 1), (missing, 0)):
        describe(f"cursor {side.stems[topic]} {partition}", one, two, missing,
                 cursor={"topic_name": topic, "partition_index": partition})
    describe("cursor -1", one, cursor={"topic_name": one, "partition_index": -1})


def test_describe_topic_partitions_matches_kafka(kafka, target):
    compare(kafka, target, _describe_partitions)


def _init_producer(side: Side, version: int) -> None:
    def init(label, **fields):
        for _ in range(200):
            answer = side.ask(label, raw.INIT_PRODUCER_ID, version, **{
                "transactional_id": None, "transaction_timeout": 60000, **fields})
            if answer is None or answer["error_code"] != LOADING:
                break
            side.answers.pop()  # Kafka fetches its next block of ids.
            time.sleep(0.01)

    init("new")
    init("another")
    init("timeout 0", transaction_timeout=0)
    init("empty id", transactional_id="")
    if version >= 3:
        init("id without epoch", producer_id=5, producer_epoch=-1)
        init("epoch without id", producer_id=-1, producer_epoch=3)
        init("id and epoch", producer_id=5, producer_epoch=3)


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_matches_kafka(kafka, target, version):
    compare(kafka, target, _init_producer, version)
