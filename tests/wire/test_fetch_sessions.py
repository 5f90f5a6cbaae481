"""Fetch sessions (KIP-227) that outlive their topic, its directory, or their client."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask, decode
from tests.wire.raw import Connection, batch, record
from tests.wire.talk import append, create_topic, unique

OK, UNKNOWN_TOPIC, UNKNOWN_ID, OTHER_ID = 0, 3, 100, 103
ALTER_LOG_DIRS, LOG_DIRS, CREATE_PARTITIONS = 34, 35, 37
SESSION_PARTITIONS = 199_000
SESSION_REQUESTS = 12
WAITING_REQUESTS = 210


class Session:
    """A fetch session of one partition of a topic, named by name (v11) or by id (v13)."""

    def __init__(self, connection: Connection, topic, partition: int = 0):
        self.connection = connection
        self.version = 13 if isinstance(topic, bytes) else 11
        self.id = self.epoch = 0
        self.first = self.ask([(topic, [(partition, 0, 1 << 20, -1)])])
        self.id = self.first["session_id"]
        assert self.id > 0, self.first

    def ask(self, rows=(), **options) -> dict:
        body = raw.fetch_body(self.version, list(rows), session_id=self.id,
                              session_epoch=self.epoch, **options)
        answer = decode(raw.FETCH, self.version,
                        self.connection.call(raw.FETCH, self.version, body))
        assert answer["error_code"] == OK, answer
        self.epoch += 1
        return answer

    def told(self) -> tuple[int, bytes] | None:
        """Return error code and records of the partition in the next response; None if it is not
        included.
        """
        rows = [cell for row in self.ask()["responses"] for cell in row["partitions"]]
        assert len(rows) <= 1, rows
        return (rows[0]["error_code"], rows[0]["records"] or b"") if rows else None


def until(condition, wait_s: float = 20.0) -> bool:
    """Return True if `condition` becomes true."""
    end_s = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def delete(port: int, name: str) -> None:
    with Connection(port) as connection:
        answer = ask(connection, raw.DELETE_TOPICS, 4, timeout=10000, topic_names=[name])
    assert answer["responses"][0]["error_code"] == OK, answer


@pytest.fixture
def connection(target):
    with Connection(target.port) as connection:
        yield connection


@pytest.mark.parametrize("by_id", [False, True], ids=["name", "id"])
def test_session_sees_topic_deletion_and_recreation_by_name(target, connection,
                                                                           by_id):
    name = unique("again")
    identity = create_topic(target.port, name)
    append(target.port, name, batch([record(value=b"first")]))
    session = Session(connection, bytes.fromhex(identity) if by_id else name)
    assert b"first" in session.first["responses"][0]["partitions"][0]["records"]
    delete(target.port, name)
    # Kafka's session caches the name of the id, and returns another topic under it.
    gone = UNKNOWN_ID if by_id and target.name == "pylog" else UNKNOWN_TOPIC
    assert until(lambda: session.told() == (gone, b""))
    create_topic(target.port, name)
    append(target.port, name, batch([record(value=b"second")]))
    if by_id:
        replaced = UNKNOWN_ID if target.name == "pylog" else OTHER_ID
        assert session.told() == (replaced, b"")
    else:
        assert until(lambda: (session.told() or (gone,))[0] == OK)
        assert b"second" in session.told()[1]


def test_session_unused_between_deletion_and_recreation_reads_the_new_topic(target,
                                                                              connection):
    name = unique("swapped")
    create_topic(target.port, name)
    append(target.port, name, batch([record(value=b"first")]))
    session = Session(connection, name)
    delete(target.port, name)
    create_topic(target.port, name)
    append(target.port, name, batch([record(value=b"second")]))
    assert until(lambda: (session.told() or (UNKNOWN_TOPIC,))[0] == OK)
    assert b"second" in session.told()[1]


def test_a_session_sees_a_partition_that_is_added_to_its_topic(target, connection):
    name = unique("grown")
    create_topic(target.port, name)
    session = Session(connection, name, partition=1)
    assert session.told() == (UNKNOWN_TOPIC, b"")
    with Connection(target.port) as other:
        answer = ask(other, CREATE_PARTITIONS, 2, timeout=10000, topics=[
            {"name": name, "count": 2, "assignments": None}])
        assert answer["results"][0]["error_code"] == OK, answer
    assert until(lambda: session.told() in ((OK, b""), None))
    append(target.port, name, batch([record(value=b"new")]), partition=1)
    assert b"new" in session.told()[1]


def _directories(connection: Connection, topic: str) -> list[str]:
    answer = ask(connection, LOG_DIRS, 4, topics=[{"topic": topic, "partitions": [0]}])
    return [directory["log_dir"] for directory in answer["results"] if directory["topics"]]


@pytest.mark.parametrize("by_id", [False, True], ids=["name", "id"])
def test_session_survives_a_move_to_another_log_directory(tmp_path, by_id):
    paths = [str(tmp_path / "one"), str(tmp_path / "two")]
    with Brokerd(tmp_path, {"log.dirs": ",".join(paths)}) as broker, \
            Connection(broker.port) as connection, Connection(broker.port) as other:
        identity = create_topic(broker.port, "moved")
        append(broker.port, "moved", batch([record(value=b"before")]))
        session = Session(connection, bytes.fromhex(identity) if by_id else "moved")
        left = _directories(other, "moved")
        there = next(path for path in paths if path not in left)
        answer = ask(other, ALTER_LOG_DIRS, 2, dirs=[
            {"path": there, "topics": [{"name": "moved", "partitions": [0]}]}])
        assert answer["results"][0]["partitions"][0]["error_code"] == OK, answer
        assert until(lambda: _directories(other, "moved") == [there])
        append(broker.port, "moved", batch([record(value=b"after")]))
        assert until(lambda: (session.told() or (OK,))[0] == OK)
        code, records = session.told()
        assert code == OK and b"before" in records and b"after" in records
        assert broker.alarms() == []


def _held(pid: int, name: str) -> list[str]:
    """Return the files of a topic that a process has open, by descriptor or by map."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in links + maps if f"/{name}-" in line]


@pytest.mark.parametrize("wait_ms", [0, 2**31 - 1], ids=["idle", "waiting"])
def test_deleted_topic_is_closed_despite_sessions(tmp_path, wait_ms):
    with Brokerd(tmp_path) as broker, Connection(broker.port) as connection, \
            Connection(broker.port) as waiting:
        create_topic(broker.port, "gone", file_delete_delay_ms=0)
        append(broker.port, "gone", batch([record(value=b"x" * 1000)]))
        session = Session(connection, "gone")
        if wait_ms:
            body = raw.fetch_body(11, [("gone", [(0, 1, 1 << 20, -1)])], wait_ms_max=wait_ms,
                                  bytes_min=1)
            waiting.send(raw.frame(raw.header(raw.FETCH, 11, 0) + body))
            assert waiting.quiet(0.1)
        assert _held(broker.pid, "gone") != []
        delete(broker.port, "gone")
        assert until(lambda: _held(broker.pid, "gone") == []), _held(broker.pid, "gone")
        assert session.told() == (UNKNOWN_TOPIC, b"")


def test_fetches_that_wait_for_many_partitions_are_bounded_all_together(tmp_path):
    with Brokerd(tmp_path) as broker, ExitStack() as stack:
        create_topic(broker.port, "wide", partitions=2)
        # Unknown partitions do not make the response faster.
        cells = [(partition, 0, 1000, -1) for partition in range(2000)]
        body = raw.fetch_body(11, [("wide", cells)], wait_ms_max=2**31 - 1, bytes_min=1)
        waiting = []
        for _ in range(WAITING_REQUESTS):
            connection = stack.enter_context(Connection(broker.port))
            connection.send(raw.frame(raw.header(raw.FETCH, 11, 0) + body))
            waiting.append(connection)
        assert until(lambda: sum(not one.quiet(0) for one in waiting) == WAITING_REQUESTS - 200)
        answered = next(one for one in waiting if not one.quiet(0))
        assert decode(raw.FETCH, 11, answered.answer(raw.FETCH, 11))["error_code"] == OK
        # A normal request waits beside them; one that is woken makes room for another.
        with Connection(broker.port) as usual:
            usual.send(raw.frame(raw.header(raw.FETCH, 11, 0) + raw.fetch_body(
                11, [("wide", [(1, 0, 1000, -1)])], wait_ms_max=2**31 - 1, bytes_min=1)))
            assert usual.quiet(0.3)
        append(broker.port, "wide", batch([record()]))
        assert until(lambda: not any(one.quiet(0) for one in waiting if one is not answered))
        answered.send(raw.frame(raw.header(raw.FETCH, 11, 0) + raw.fetch_body(
            11, [("wide", cells[1:])], wait_ms_max=2**31 - 1, bytes_min=1)))
        assert answered.quiet(0.3)


@pytest.mark.memory
def test_sessions_of_many_partitions_are_bounded_all_together(tmp_path):
    rows = [("wide", [(partition, 0, 1000, -1) for partition in range(SESSION_PARTITIONS)])]
    body = raw.fetch_body(11, rows, session_epoch=0)
    with Brokerd(tmp_path) as broker, Connection(broker.port, wait_s=60) as connection:
        create_topic(broker.port, "wide")
        # The first response shows the memory of one request, which stays with the allocator.
        connection.call(raw.FETCH, 11, raw.fetch_body(11, rows, session_epoch=-1))
        before = broker.rss_bytes()
        sessions = []
        for _ in range(SESSION_REQUESTS):
            answer = connection.call(raw.FETCH, 11, body)
            error_code, session_id = int.from_bytes(answer[4:6]), int.from_bytes(answer[6:10])
            assert error_code == OK
            sessions.append(session_id)
        assert sessions[0] > 0 and sessions[-1] == 0
        assert broker.rss_bytes() - before < 96 << 20
        # A client without a session is served without one, and small sessions still find room.
        append(broker.port, "wide", batch([record(value=b"seen")]))
        assert b"seen" in connection.call(raw.FETCH, 11, body)
        create_topic(broker.port, "small")
        assert Session(connection, "small").id > 0
