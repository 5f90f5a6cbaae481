"""Fetches that no consumer should send, one test each.

The expected codes are those of Apache Kafka 4.4 unless a row states and explains a difference.
"""

import uuid

import pytest

from tests.fixtures.brokers import answers
from tests.wire import raw
from tests.wire.messages import ask, decode
from tests.wire.raw import Connection, batch, record
from tests.wire.talk import append, create_topic, fetch, unique

OK, OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER, UNAUTHORIZED = 0, 1, 3, 6, 29
SESSION_NOT_FOUND, BAD_SESSION_EPOCH, FENCED_EPOCH, UNKNOWN_EPOCH, UNKNOWN_ID = 70, 71, 74, 75, 100
BATCHES = 5


@pytest.fixture(scope="module")
def topic(target):
    name = unique("fetch-faults")
    create_topic(target.port, name)
    for _ in range(BATCHES):
        append(target.port, name, batch([record(value=b"x" * 100)]))
    return name


@pytest.fixture
def connection(target):
    with Connection(target.port) as connection:
        yield connection


@pytest.mark.parametrize("version", [7, 11, 12])
@pytest.mark.parametrize("offset", [-5, -1, BATCHES + 1, 2**63 - 1])
def test_178_an_offset_outside_the_log_is_error_1(connection, topic, offset, version):
    row = fetch(connection, topic, offset, version=version)
    assert (row["error_code"], row["records"] or b"") == (OUT_OF_RANGE, b"")
    assert row["high_watermark"] == -1


def test_178_the_log_end_is_an_empty_answer(connection, topic):
    row = fetch(connection, topic, BATCHES)
    assert (row["error_code"], row["records"], row["high_watermark"]) == (OK, b"", BATCHES)


@pytest.mark.parametrize("name, partition", [(None, 0), (None, -1), ("", -1), ("", 9), ("..", 0)])
def test_179_an_unknown_topic_or_partition_is_error_3(connection, topic, name, partition):
    name = unique("nowhere") if name is None else name or topic
    assert fetch(connection, name, partition=partition)["error_code"] == UNKNOWN_TOPIC


@pytest.mark.parametrize("identity", [uuid.uuid4().bytes, bytes(16)], ids=["random", "zero"])
def test_179_an_unknown_topic_id_is_error_100(connection, identity):
    body = raw.fetch_body(13, [(identity, [(0, 0, 1000, -1)])])
    answer = decode(raw.FETCH, 13, connection.call(raw.FETCH, 13, body))
    codes = {answer["error_code"]} | {cell["error_code"] for row in answer["responses"] or []
                                      for cell in row["partitions"]}
    assert codes - {OK} == {UNKNOWN_ID}


@pytest.mark.parametrize("limits", [
    {"bytes_max": 0}, {"partition_bytes_max": 0}, {"bytes_max": 0, "partition_bytes_max": 0},
    {"bytes_max": 1, "partition_bytes_max": 1},
], ids=str)
def test_180_a_limit_below_one_batch_still_returns_one_whole_batch(connection, topic, limits):
    records = fetch(connection, topic, 2, **limits)["records"]
    assert len(records) == len(batch([record(value=b"x" * 100)]))
    assert int.from_bytes(records[:8], "big") == 2


@pytest.mark.parametrize("limits", [{"bytes_max": -1}, {"partition_bytes_max": -1}], ids=str)
def test_180_a_negative_limit_is_rejected_or_read_as_zero(target, connection, topic, limits):
    code = fetch(connection, topic, 2, **limits)["error_code"]
    assert code in ((OK, -1, 42) if target.name == "pylog" else (-1,))


def test_181_a_wait_or_minimum_below_0_is_served_at_once(connection, topic):
    assert fetch(connection, topic, BATCHES, wait_ms_max=-1, bytes_min=1)["error_code"] == OK
    assert fetch(connection, topic, 0, wait_ms_max=100, bytes_min=-1)["error_code"] == OK


@pytest.mark.parametrize("epoch, code", [(99, UNKNOWN_EPOCH), (2**31 - 1, UNKNOWN_EPOCH),
                                         (-1, OK), (0, OK), (-2, OK)])
def test_183_a_future_leader_epoch_is_error_75(target, connection, topic, epoch, code):
    if epoch == -2 and target.name == "pylog":
        code = (OK, FENCED_EPOCH)
    got = fetch(connection, topic, leader_epoch=epoch)["error_code"]
    assert got in code if isinstance(code, tuple) else got == code


def _session(connection, topic, session_id: int, epoch: int, rows=None) -> dict:
    topics = [(topic, [(0, 0, 1000, -1)])] if rows is None else rows
    body = raw.fetch_body(11, topics, session_id=session_id, session_epoch=epoch)
    return decode(raw.FETCH, 11, connection.call(raw.FETCH, 11, body))


def test_184_an_unknown_session_is_error_70_and_a_wrong_epoch_71(connection, topic):
    assert _session(connection, topic, 123456, 5)["error_code"] == SESSION_NOT_FOUND
    session_id = _session(connection, topic, 0, 0)["session_id"]
    assert session_id > 0
    assert _session(connection, topic, session_id, 7)["error_code"] == BAD_SESSION_EPOCH
    assert _session(connection, topic, session_id, 1, rows=[])["error_code"] == OK
    assert _session(connection, topic, session_id, 1, rows=[])["error_code"] == BAD_SESSION_EPOCH


def test_185_sessions_beyond_the_slots_are_answered_without_a_session(target, topic):
    kept = []
    connection = Connection(target.port)
    for _ in range(1100):
        answer = _session(connection, topic, 0, 0)
        assert answer["error_code"] == OK
        assert answer["responses"][0]["partitions"][0]["error_code"] == OK
        kept.append(answer["session_id"])
    with_session = [session for session in kept if session]
    assert len(set(with_session)) == len(with_session)
    assert 900 <= len(with_session) <= 1000 and 0 in kept
    for session in with_session:
        _session(connection, topic, session, -1, rows=[])
    connection.close()


@pytest.mark.parametrize("replica_id", [1, 77])
def test_186_a_client_is_no_replica(target, connection, topic, replica_id):
    codes = {NOT_LEADER, UNAUTHORIZED} if target.name == "pylog" else {NOT_LEADER}
    code = fetch(connection, topic, replica_id=replica_id)["error_code"]
    assert code in codes


def test_179_unknown_partitions_are_reported_without_hastening_the_response(connection, topic):
    cells = [(topic, [(0, BATCHES, 1000, -1), (9, 0, 1000, -1)]),
             (unique("nowhere"), [(0, 0, 1000, -1)])]
    body = raw.fetch_body(11, cells, wait_ms_max=1000, bytes_min=1)
    connection.send(raw.frame(raw.header(raw.FETCH, 11, 1) + body))
    assert connection.quiet(0.5)
    connection.correlation_id = 1
    answer = decode(raw.FETCH, 11, connection.answer(raw.FETCH, 11))
    assert sorted(cell["error_code"] for row in answer["responses"]
                  for cell in row["partitions"]) == [OK, UNKNOWN_TOPIC, UNKNOWN_TOPIC]


def test_187_a_partition_named_three_times_is_answered_once(connection, topic):
    body = raw.fetch_body(11, [(topic, [(0, 0, 1000, -1)] * 3)])
    answer = decode(raw.FETCH, 11, connection.call(raw.FETCH, 11, body))
    assert [len(row["partitions"]) for row in answer["responses"]] == [1]


def test_85_fetch_of_50000_unknown_topics_leaves_no_memory_behind(target):
    rows = [(f"unknown-{number}", [(0, 0, 1000, -1)]) for number in range(50000)]
    body = raw.fetch_body(11, rows)
    before = target.rss_bytes()
    with Connection(target.port, wait_s=30) as connection:
        answer = decode(raw.FETCH, 11, connection.call(raw.FETCH, 11, body))
    assert len(answer["responses"]) == 50000
    assert {row["partitions"][0]["error_code"] for row in answer["responses"]} == {UNKNOWN_TOPIC}
    assert answers(target.port)
    if target.name == "pylog":
        assert target.rss_bytes() - before < 64 << 20


def test_182_a_list_offsets_of_unknown_things_is_error_3(connection, topic):
    for name, partition in ((unique("nowhere"), 0), (topic, 5), (topic, -1)):
        answer = ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[
            {"name": name, "partitions": [{"partition_index": partition, "timestamp": -1}]}])
        assert answer["topics"][0]["partitions"][0]["error_code"] == UNKNOWN_TOPIC
