"""Limits by Kafka's settings, each on a separate broker: sizes, connections, idleness, retention.
"""

import resource
import struct
import time

import pytest

from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.fixtures.brokers import Brokerd, Kafka, answers
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Closed, Connection, batch, frame, header, record
from tests.wire.talk import append, create_topic, fetch, produce, unique

VALID = header(raw.METADATA, 1, 7) + struct.pack(">i", 0)
MIB = 1 << 20


@pytest.fixture
def start(against, tmp_path):
    """Start a broker with the given settings."""
    started = []

    def begin(**settings):
        kind = Kafka if against == "kafka" else Brokerd
        names = {key.replace("_", "."): value for key, value in settings.items()}
        started.append(kind(tmp_path, names).start())
        return started[-1]

    yield begin
    for broker in started:
        assert broker.alive() and broker.alarms() == []
        broker.kill()


def _served(connection: Connection) -> bool:
    try:
        connection.send(frame(VALID))
        return struct.unpack_from(">i", connection.receive())[0] == 7
    except (Closed, OSError):
        return False


def test_a_frame_above_socket_request_max_bytes_is_closed(start):
    broker = start(socket_request_max_bytes=MIB)
    with Connection(broker.port) as connection:
        connection.send(struct.pack(">i", MIB + 1))
        assert connection.closed()
    topic = unique("framed")
    create_topic(broker.port, topic)
    append(broker.port, topic, batch([record(value=bytes(MIB - 2000))]))


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(start):
    broker = start(connections_max_idle_ms=3000)
    with Connection(broker.port) as idle, Connection(broker.port) as busy:
        assert _served(idle) and _served(busy)
        for _ in range(24):
            time.sleep(0.25)
            assert _served(busy)
        assert idle.closed(wait_s=10)


def test_connections_beyond_max_connections_wait_or_are_closed(start):
    broker = start(max_connections=10)
    held = [Connection(broker.port) for _ in range(10)]
    assert all(_served(connection) for connection in held)
    with Connection(broker.port, wait_s=1) as extra:
        assert not _served(extra)
    for connection in held:
        connection.close()
    end_s = time.monotonic() + 5
    while not answers(broker.port) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert answers(broker.port)


def test_max_connections_of_one_listener_limits_only_that_listener():
    ports = free_port(), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{ports[0]},OTHER://127.0.0.1:{ports[1]}"
    with Broker(settings={
            "listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
            "listener.name.other.max.connections": "2"}):
        held = [Connection(ports[1]) for _ in range(2)]
        assert all(_served(connection) for connection in held)
        with Connection(ports[1], wait_s=1) as extra:
            assert not _served(extra)
        unlimited = [Connection(ports[0]) for _ in range(5)]
        assert all(_served(connection) for connection in unlimited)
        _set(unlimited[0], "listener.name.other.max.connections", "3")
        with Connection(ports[1], wait_s=20) as third:
            assert _served(third)
        for connection in (*held, *unlimited):
            connection.close()


def _set(connection, name, value):
    answer = ask(connection, 44, 1, validate_only=False, resources=[
        {"resource_type": 4, "resource_name": "1", "configs": [
            {"name": name, "config_operation": 0, "value": value}]}])
    assert answer["responses"][0]["error_code"] == 0, answer


def test_message_max_bytes_of_the_broker_holds_for_new_topics(start):
    broker = start(message_max_bytes=2000)
    topic = unique("bounded")
    create_topic(broker.port, topic)
    with Connection(broker.port) as connection:
        assert produce(connection, topic, batch([record(value=bytes(1500))]))["error_code"] == 0
        assert produce(connection, topic, batch([record(value=bytes(2500))]))["error_code"] == 10


def _earliest(port: int, topic: str) -> int:
    with Connection(port) as connection:
        answer = ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[
            {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -2}]}])
    return answer["topics"][0]["partitions"][0]["offset"]


@pytest.mark.parametrize("configs, record_ms", [
    ({"retention_bytes": 2 * MIB, "retention_ms": -1}, None),
    ({"retention_bytes": -1, "retention_ms": 60_000}, 1_600_000_000_000)],
    ids=["by-size", "by-time"])
def test_retention_deletes_old_segments_and_moves_the_log_start(start, configs, record_ms):
    broker = start(log_retention_check_interval_ms=200, log_initial_task_delay_ms=0)
    topic = unique("retained")
    create_topic(broker.port, topic, segment_bytes=MIB, file_delete_delay_ms=100, **configs)
    for _ in range(24):
        end = append(broker.port, topic, batch([record(value=bytes(250_000))],
                                               base_timestamp=record_ms)) + 1
    deadline_s = time.monotonic() + 20
    while _earliest(broker.port, topic) == 0 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    first = _earliest(broker.port, topic)
    assert 0 < first <= end
    with Connection(broker.port) as connection:
        assert fetch(connection, topic, 0)["error_code"] == 1
        row = fetch(connection, topic, first)
        assert (row["error_code"], row["log_start_offset"]) == (0, first)
        assert row["high_watermark"] == end
    folder = broker.data_dir / f"{topic}-0"
    while len(list(folder.glob("*.deleted"))) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert len(list(folder.glob("*.log"))) <= 4
    assert append(broker.port, topic, batch()) == end


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


def test_more_partitions_than_the_process_may_have_files_are_written_and_read(tmp_path):
    count = 400
    with Brokerd(tmp_path, preexec=_few_files) as broker:
        topic = unique("wide")
        create_topic(broker.port, topic, count)
        with Connection(broker.port) as connection:
            for partition in range(count):
                row = produce(connection, topic, batch([record(value=b"%d" % partition)]),
                              partition=partition)
                assert row["error_code"] == 0, row
            for partition in range(count):
                assert b"%d" % partition in fetch(connection, topic, partition=partition)["records"]
        assert "the limit of open files is low" in broker.tail(1 << 20)
        assert broker.alarms() == []
