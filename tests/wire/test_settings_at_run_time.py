"""Broker settings that take effect before the response to their change."""

import contextlib
from pathlib import Path

import pytest

from pylog.testing.ports import free_port
from tests.fixtures.brokers import Brokerd, answers
from tests.fixtures.waits import until
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection, batch, record
from tests.wire.talk import append, create_topic, unique

INCREMENTAL, BROKER, SET, DELETE = 44, 4, 0, 1


@pytest.fixture
def broker(tmp_path):
    with Brokerd(tmp_path, {"num.network.threads": 2}) as running:
        yield running


def alter(broker: Brokerd, name: str, value: str | None, resource: str = "1") -> tuple[int, str]:
    with Connection(broker.port) as connection:
        answer = ask(connection, INCREMENTAL, 1, validate_only=False, resources=[
            {"resource_type": BROKER, "resource_name": resource, "configs": [
                {"name": name, "config_operation": DELETE if value is None else SET,
                 "value": value}]}])["responses"][0]
    return answer["error_code"], answer["error_message"]


def threads(broker: Brokerd, stem: str) -> int:
    count = 0
    for task in Path(f"/proc/{broker.pid}/task").iterdir():
        # A thread may end while its name is read.
        with contextlib.suppress(OSError):
            count += (task / "comm").read_text().startswith(stem)
    return count


def served(connection: Connection) -> bool:
    return ask(connection, raw.API_VERSIONS, 0)["error_code"] == 0


def test_network_threads_come_and_go_while_requests_are_served(broker):
    topic = unique("resized")
    create_topic(broker.port, topic)
    assert alter(broker, "num.network.threads", "4")[0] == 0
    # They set their names when they first run.
    until(lambda: threads(broker, "reactor-") == 4)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(Connection(broker.port)) for _ in range(12)]
        assert all(served(connection) for connection in opened)
    for wanted in ("2", "1", "2"):
        assert alter(broker, "num.network.threads", wanted)[0] == 0
        for number in range(8):
            append(broker.port, topic, batch([record(value=b"%d" % number)]))
    assert alter(broker, "num.network.threads", "9")[0] == 42


def test_io_threads_follow_the_setting(broker):
    assert alter(broker, "num.io.threads", "16", "")[0] == 0
    until(lambda: threads(broker, "io-worker") == 16)
    assert alter(broker, "num.io.threads", "8", "")[0] == 0
    until(lambda: threads(broker, "io-worker") == 8)


def test_new_listener_is_served_advertised_and_survives_a_restart(broker):
    port, own = free_port(), broker.port
    protocols = "PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT"
    first = f"PLAINTEXT://127.0.0.1:{broker.port}"
    assert alter(broker, "listener.security.protocol.map", protocols)[0] == 0
    assert alter(broker, "listeners", f"{first},SECOND://127.0.0.1:{port}")[0] == 0
    with Connection(port) as second:
        row = ask(second, raw.METADATA, 12, topics=[])["brokers"][0]
        assert (row["host"], row["port"]) == ("127.0.0.1", port)
    broker.stop()
    broker.start()
    assert answers(port)
    with Connection(port) as second:
        assert served(second)
        assert alter(broker, "listeners", first)[0] == 0
        assert second.closed()
    assert not answers(port)
    assert answers(own)


def test_listener_moved_to_another_address_keeps_its_port(broker):
    with Connection(broker.port) as connection:
        assert served(connection)
        assert alter(broker, "listeners", f"PLAINTEXT://127.0.0.1:{broker.port}")[0] == 0
        assert served(connection)
        assert alter(broker, "listeners", f"PLAINTEXT://:{broker.port}")[0] == 0
        assert connection.closed()
    assert answers(broker.port)


@pytest.mark.parametrize("value, told", [
    ("PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2", "twice"), ("nonsense", "nonsense"),
    ("UNMAPPED://:1", "UNMAPPED")])
def test_invalid_listeners_are_rejected(broker, value, told):
    code, text = alter(broker, "listeners", value)
    assert code in (40, 42) and told in text
    assert answers(broker.port)


def test_limits_of_connections_hold_at_once(broker):
    with Connection(broker.port) as first, Connection(broker.port) as second:
        assert served(first) and served(second)
        assert alter(broker, "max.connections.per.ip", "2", "")[0] == 0
        with contextlib.suppress(ConnectionError), Connection(broker.port) as third:
            assert third.closed()
        row = {"resource_type": BROKER, "resource_name": "", "configs": [
            {"name": "max.connections.per.ip.overrides", "config_operation": SET,
             "value": "localhost:20"}]}
        answer = ask(first, INCREMENTAL, 1, validate_only=False, resources=[row])
        assert answer["responses"][0]["error_code"] == 0
        with Connection(broker.port) as third:
            assert served(third)
        row["configs"][0]["value"] = "localhost:many"
        answer = ask(first, INCREMENTAL, 1, validate_only=False, resources=[row])
        assert answer["responses"][0]["error_code"] == 42
