"""Invalid topic requests, one test each.

The expected codes are those of Apache Kafka 4.4 unless a row states and explains a difference.
"""

import struct
import time

import pytest

from tests.fixtures.brokers import Brokerd, answers, cpu_seconds
from tests.wire import raw
from tests.wire.messages import ask, decode, encode
from tests.wire.raw import Connection, header
from tests.wire.talk import append, create_topic, unique

OK, UNKNOWN_TOPIC, INVALID_TOPIC, EXISTS, BAD_PARTITIONS, BAD_REPLICATION = 0, 3, 17, 36, 37, 38
DELETE_RECORDS = 21
OFFSET_COMMIT, FIND_COORDINATOR = 8, 10
BAD_ASSIGNMENT, BAD_CONFIG, INVALID_REQUEST, POLICY = 39, 40, 42, 44
CREATE_VERSIONS = [2, 4, 5, 7]


def _create(port: int, version: int = 7, **row) -> int:
    fields = {"num_partitions": 1, "replication_factor": 1, **row}
    with Connection(port, wait_s=30) as connection:
        answer = ask(connection, raw.CREATE_TOPICS, version, timeout=10000, topics=[fields])
    codes = {topic["error_code"] for topic in answer["topics"]}
    assert len(codes) == 1, answer
    return codes.pop()


BAD_NAMES = [
    ("49-dot-dot", ".."), ("50-dot", "."), ("51-slash", "a/b"), ("52-path", "../../etc/passwd"),
    ("53-empty", ""), ("54-250-characters", "x" * 250), ("55-space", "a b"), ("56-nul", "a\0b"),
    ("57-newline", "a\nb"), ("58-e-acute", "\u00e9"),
]


@pytest.mark.parametrize("version", CREATE_VERSIONS)
@pytest.mark.parametrize("name", [row[1] for row in BAD_NAMES], ids=[row[0] for row in BAD_NAMES])
def test_a_name_that_is_no_topic_name_is_error_17(target, name, version):
    assert _create(target.port, version, name=name) == INVALID_TOPIC


def _raw_create(port: int, name: bytes) -> bytes | None:
    """Return the response body to a CreateTopics v2 with any bytes as name; None if closed."""
    body = struct.pack(">i", 1) + name + struct.pack(">ihiii?", 1, 1, 0, 0, 5000, False)
    with Connection(port) as connection:
        connection.send(raw.frame(header(raw.CREATE_TOPICS, 2, 1) + body))
        try:
            return connection.answer(raw.CREATE_TOPICS, 2, 1)
        except raw.Closed:
            return None


def test_59_a_name_that_is_not_utf8_is_error_17(target):
    answer = _raw_create(target.port, struct.pack(">h", 2) + b"\xff\xfe")
    if answer is None:
        assert target.name == "pylog", "Kafka answers"
        return
    length = struct.unpack_from(">h", answer, 8)[0]
    assert struct.unpack_from(">h", answer, 10 + length)[0] == INVALID_TOPIC


def test_60_a_null_name_closes_the_connection(target):
    assert _raw_create(target.port, struct.pack(">h", -1)) is None


def test_61_249_characters_a_leading_dash_and_a_device_name_are_names(target):
    stem = unique("n")
    for name in (stem + "x" * (249 - len(stem)), f"-{stem}", f"CON{stem}", f"{stem}..."):
        assert _create(target.port, name=name) == OK


def test_62_names_that_differ_by_dot_and_underscore_collide(target):
    stem = unique("c")
    assert _create(target.port, name=f"{stem}.b") == OK
    assert _create(target.port, name=f"{stem}_b") == INVALID_TOPIC


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_63_an_internal_topic_is_created_by_a_client_once(target, name):
    assert _create(target.port, name=name) in (0, EXISTS)
    assert _create(target.port, name=name) == EXISTS


def test_63_groups_work_on_an_offsets_topic_created_by_a_client(tmp_path):
    with Brokerd(tmp_path) as broker:
        assert _create(broker.port, name="__consumer_offsets", num_partitions=3) == OK
        with Connection(broker.port, wait_s=20) as connection:
            ask(connection, FIND_COORDINATOR, 3, key="g", key_type=0)
            topic = unique("committed")
            create_topic(broker.port, topic)
            rows = [{"name": topic, "partitions": [{
                "partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1,
                "committed_metadata": ""}]}]
            answer = ask(connection, OFFSET_COMMIT, 7, group_id="g", topics=rows,
                         generation_id_or_member_epoch=-1, member_id="", group_instance_id=None)
        assert answer["topics"][0]["partitions"][0]["error_code"] == OK


def test_64_repeated_name_in_one_request_is_error_42(target):
    name = unique("twice")
    row = {"name": name, "num_partitions": 1, "replication_factor": 1}
    with Connection(target.port) as connection:
        answer = ask(connection, raw.CREATE_TOPICS, 7, timeout=5000, topics=[row, row])
    assert [(topic["name"], topic["error_code"]) for topic in answer["topics"]] \
        == [(name, INVALID_REQUEST)]


def test_65_an_existing_topic_is_error_36(target):
    name = unique("there")
    assert _create(target.port, name=name) == OK
    for version in CREATE_VERSIONS:
        assert _create(target.port, version, name=name) == EXISTS


@pytest.mark.parametrize("count, code", [(0, BAD_PARTITIONS), (-5, BAD_PARTITIONS),
                                         (2**31 - 1, POLICY), (100001, POLICY)])
def test_66_to_69_a_partition_count_out_of_range_is_rejected(target, count, code):
    assert _create(target.port, name=unique("count"), num_partitions=count) == code
    assert answers(target.port)


def test_69_more_than_10000_topics_in_one_request_are_rejected(target):
    stem = unique("many")
    rows = [{"name": f"{stem}-{number}", "num_partitions": 1, "replication_factor": 1}
            for number in range(10001)]
    with Connection(target.port, wait_s=30) as connection:
        answer = ask(connection, raw.CREATE_TOPICS, 7, timeout=10000, topics=rows)
    assert {topic["error_code"] for topic in answer["topics"]} == {POLICY}


@pytest.mark.parametrize("factor", [0, 5, 32767, -2])
def test_70_to_72_a_replication_factor_that_cannot_be_is_error_38(target, factor):
    assert _create(target.port, name=unique("rf"), replication_factor=factor) == BAD_REPLICATION


@pytest.mark.parametrize("key, value", [
    ("no.such.config", "1"), ("retention.ms", "soon"), ("segment.bytes", "9" * 32000),
    ("cleanup.policy", "shred"), ("min.insync.replicas", "0"), ("max.message.bytes", "-1"),
    ("compression.type", "rar"), ("segment.bytes", "1"), ("retention.ms", "-2"),
], ids=["73-unknown", "74-not-a-number", "75-32000-digits", "75b-policy", "75c-min-isr-0",
        "75d-negative-size", "75e-codec", "75f-below-minimum", "75g-below-minus-1"])
def test_73_to_75_a_bad_config_is_error_40(target, key, value):
    configs = [{"name": key, "value": value}]
    assert _create(target.port, name=unique("cfg"), configs=configs) == BAD_CONFIG


@pytest.mark.parametrize("assignments, code", [
    ([{"partition_index": 1, "broker_ids": [1]}], BAD_ASSIGNMENT),
    ([{"partition_index": 0, "broker_ids": []}], BAD_ASSIGNMENT),
    ([{"partition_index": 0, "broker_ids": [1, 1]}], BAD_ASSIGNMENT),
    ([{"partition_index": 0, "broker_ids": [99]}], BAD_ASSIGNMENT),
    ([{"partition_index": 0, "broker_ids": [1]}, {"partition_index": 0, "broker_ids": [1]}],
     BAD_ASSIGNMENT),
    ([{"partition_index": 0, "broker_ids": [1]}, {"partition_index": 2, "broker_ids": [1]}],
     BAD_ASSIGNMENT),
], ids=["not-from-0", "no-replica", "same-replica-twice", "unknown-broker", "twice", "gap"])
def test_an_assignment_that_cannot_be_is_error_39(target, assignments, code):
    assert _create(target.port, name=unique("asg"), num_partitions=-1, replication_factor=-1,
                   assignments=assignments) == code


def test_an_assignment_beside_a_count_is_error_42(target):
    code = _create(target.port, name=unique("both"), num_partitions=1, replication_factor=1,
                   assignments=[{"partition_index": 0, "broker_ids": [1]}])
    assert code == INVALID_REQUEST


def test_validate_only_creates_nothing(target):
    name = unique("dry")
    with Connection(target.port) as connection:
        for _ in range(2):
            answer = ask(connection, raw.CREATE_TOPICS, 7, timeout=5000, validate_only=True,
                         topics=[{"name": name, "num_partitions": 3, "replication_factor": 1}])
            assert answer["topics"][0]["error_code"] == OK
            assert answer["topics"][0]["num_partitions"] == 3
        row = ask(connection, raw.METADATA, 9, topics=[{"name": name}],
                  allow_auto_topic_creation=False)["topics"][0]
    assert row["error_code"] == UNKNOWN_TOPIC


def test_84_metadata_of_100000_unknown_names_takes_bounded_time(target):
    names = [{"name": f"unknown-{number}"} for number in range(100000)]
    before = target.rss_bytes()
    with Connection(target.port, wait_s=60) as connection, Connection(target.port) as neighbour:
        body = raw.header(raw.METADATA, 9, 1)
        request = encode(raw.METADATA, 9, topics=names, allow_auto_topic_creation=False)
        busy_s = cpu_seconds(target.pid)
        connection.send(raw.frame(body + request))
        slowest_s = 0.0
        while connection.quiet(0.01):
            at_s = time.monotonic()
            assert ask(neighbour, raw.METADATA, 1, topics=[])["topics"] == []
            slowest_s = max(slowest_s, time.monotonic() - at_s)
        busy_s = cpu_seconds(target.pid) - busy_s
        answer = decode(raw.METADATA, 9, connection.answer(raw.METADATA, 9, 1))
    assert {row["error_code"] for row in answer["topics"]} == {UNKNOWN_TOPIC}
    if target.name == "pylog":
        assert busy_s < 3.0 and slowest_s < 6.0, (busy_s, slowest_s)
        assert target.rss_bytes() - before < 256 << 20


def test_86_metadata_creates_a_topic_only_on_request_with_a_valid_name(target):
    name = unique("auto")
    with Connection(target.port) as connection:
        row = ask(connection, raw.METADATA, 9, topics=[{"name": name}],
                  allow_auto_topic_creation=False)["topics"][0]
        assert row["error_code"] == UNKNOWN_TOPIC
        bad = ask(connection, raw.METADATA, 9, topics=[{"name": "a b"}],
                  allow_auto_topic_creation=True)["topics"][0]
        assert bad["error_code"] == INVALID_TOPIC
        end_s = time.monotonic() + 10
        code = None
        while code != OK and time.monotonic() < end_s:
            code = ask(connection, raw.METADATA, 9, topics=[{"name": name}],
                       allow_auto_topic_creation=True)["topics"][0]["error_code"]
            assert code in (OK, UNKNOWN_TOPIC, 5)
            time.sleep(0.01)
        assert code == OK


def test_name_of_a_deleted_topic_can_be_reused(target):
    name = unique("gone")
    first = create_topic(target.port, name)
    with Connection(target.port) as connection:
        answer = ask(connection, raw.DELETE_TOPICS, 6, timeout=5000,
                     topics=[{"name": name, "topic_id": None}])
        assert answer["responses"][0]["error_code"] == OK
        row = ask(connection, raw.METADATA, 9, topics=[{"name": name}],
                  allow_auto_topic_creation=False)["topics"][0]
        assert row["error_code"] == UNKNOWN_TOPIC
        again = ask(connection, raw.DELETE_TOPICS, 6, timeout=5000,
                    topics=[{"name": name, "topic_id": None}])
        assert again["responses"][0]["error_code"] == UNKNOWN_TOPIC
    assert create_topic(target.port, name) != first


def test_records_above_a_deletion_stay_however_old_they_are(target):
    topic = unique("trimmed-old")
    create_topic(target.port, topic)
    append(target.port, topic, raw.batch(
        [raw.record(offset_delta=number) for number in range(10)], base_timestamp=1))
    with Connection(target.port) as connection:
        answer = ask(connection, DELETE_RECORDS, 2, timeout=5000, topics=[{
            "name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}])
    row = answer["topics"][0]["partitions"][0]
    assert (row["error_code"], row["low_watermark"]) == (OK, 2)
