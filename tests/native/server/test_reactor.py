"""Reactors as dispatch uses them: listen, poll, reply, resume, principals, statistics, stop."""

import select
import socket
import struct
import time

import pytest

from pylog._native.log.io_pool import IoPool
from pylog._native.server.grants import Grants
from pylog._native.server.reactor import (
    POLL_EVENTS_MAX,
    THREADS_MAX,
    Closed,
    Miss,
    Reactors,
    RequestContext,
)
from tests.wire import raw

VERSIONS = [(0, 3, 13, 9), (1, 4, 18, 12), (3, 0, 13, 9), (18, 0, 4, 3)]
LIMITS = {"request_bytes_max": 1 << 20, "idle_ms_max": -1, "queued_requests_max": 500,
          "fetch_bytes_max": 1 << 20, "sessions_max": 10}
MISSES_ROUNDS_MAX = 16   # serve/grant_requests.h


def made(network_threads: int = 2, api_versions=VERSIONS, **limits) -> Reactors:
    return Reactors(grants=Grants(), io_pool=IoPool(), network_threads=network_threads,
                    api_versions=api_versions, **LIMITS, **limits)


@pytest.fixture
def reactors():
    running = made()
    running.start()
    yield running
    running.stop(1000)


@pytest.fixture
def connection(reactors):
    with raw.Connection(reactors.listen(3, "127.0.0.1", 0, 10)) as opened:
        yield opened


def polled(reactors: Reactors, count: int = 1, wait_s: float = 5.0) -> list:
    events, end_s = [], time.monotonic() + wait_s
    while len(events) < count:
        assert select.select([reactors], [], [], end_s - time.monotonic())[0], events
        events += reactors.poll()
    assert len(events) == count
    return events


def test_queued_responses_are_sent_by_flush(reactors, connection):
    for number in (5, 2**31 - 1):
        connection.send(raw.frame(raw.header(raw.METADATA, 9)))
        [event] = polled(reactors)
        reactors.queue_reply(event.token, raw.frame(b"....answer"), number)
        reactors.flush_replies()
        assert connection.receive() == number.to_bytes(4, "big") + b"answer"
    reactors.queue_reply(2**63 - 1, raw.frame(b"of nobody"), 1)
    reactors.flush_replies()


def test_request_event_contains_all_its_fields(reactors, connection):
    connection.send(raw.frame(raw.header(raw.METADATA, 9, 77, client_id=b"me") + b"body"))
    [event] = polled(reactors)
    assert 0 <= reactors.now_ns() - event.began_ns < 60 * 10**9
    assert (event.listener, event.api_key, event.api_version, event.correlation_id,
            event.client_id, event.take_body(), event.principal) == (3, 3, 9, 77, "me", b"body", 0)
    assert (event.local_host, event.local_port) == connection.socket.getpeername()
    assert (event.peer_host, event.peer_port) == connection.socket.getsockname()
    assert (event.taken_ns, event.busy_ns, event.throttle_ms, event.created_count,
            event.cacheable) == (0, 0, 0, 0, False)
    number = event.connection
    reactors.set_principal(number, 5)
    reactors.reply(event.token, raw.frame(b"the answer"))
    assert connection.receive() == b"the answer"
    connection.send(raw.frame(raw.header(raw.METADATA, 0, -1, client_id=None)))
    [event] = polled(reactors)
    assert (event.connection, event.correlation_id, event.client_id, event.take_body(),
            event.principal) == (number, -1, None, b"", 5)
    reactors.reply(event.token, None)
    connection.send(raw.frame(raw.header(raw.METADATA, 0)))
    [event] = polled(reactors)
    reactors.reply(event.token, raw.frame(b"bye"), close=True)
    assert connection.receive() == b"bye" and connection.closed()


def test_topic_without_a_grant_is_a_miss_decided_in_python(reactors, connection):
    connection.send(raw.frame(raw.header(raw.PRODUCE, 9, 4)
                              + raw.produce_body(9, "t", [(0, raw.batch())])))
    [miss] = polled(reactors)
    assert (type(miss), miss.principal, miss.topics) == (Miss, 0, [(b"t", None)])
    reactors.resume(miss.token, [29])
    answer = connection.receive()
    assert struct.unpack_from(">i", answer) == (4,) and b"\x02t\x02\0\0\0\0\0\x1d" in answer
    connection.send(raw.frame(raw.header(raw.FETCH, 13, 5)
                              + raw.fetch_body(13, [(b"i" * 16, [(0, 0, 100, -1)])])))
    [event] = polled(reactors)
    assert event.topics == [(None, b"i" * 16)]
    reactors.resume(event.token, [100])
    assert struct.unpack_from(">i", connection.receive()) == (5,)


@pytest.mark.parametrize("key, version", [(raw.PRODUCE, 9), (raw.FETCH, 12)])
def test_grant_voided_before_its_request_continues_is_queried_again(
        reactors, connection, key, version):
    # A partition became available, or ACLs changed, between the verdict and the second check.
    body = (raw.produce_body(version, "t", [(0, raw.batch())]) if key == raw.PRODUCE
            else raw.fetch_body(version, [("t", [(0, 0, 100, -1)])]))
    connection.send(raw.frame(raw.header(key, version, 4) + body))
    for _ in range(2):
        [event] = polled(reactors)
        assert event.topics == [(b"t", None)]
        reactors.resume(event.token, [0])
    [event] = polled(reactors)
    reactors.resume(event.token, [29])
    assert b"\x02t\x02\0\0\0\0\0\x1d" in connection.receive()
    # Not forever: then it is an error that clients retry.
    connection.send(raw.frame(raw.header(key, version, 4) + body))
    for _ in range(1 + MISSES_ROUNDS_MAX):
        [event] = polled(reactors)
        reactors.resume(event.token, [0])
    assert b"\x02t\x02\0\0\0\0\0\x06" in connection.receive()


def test_responses_to_unknown_requests_are_ignored(reactors, connection):
    connection.send(raw.frame(raw.header(raw.METADATA, 0)))
    [event] = polled(reactors)
    token = event.token
    reactors.resume(token, [0])
    reactors.reply(token, raw.frame(b"first"))
    reactors.reply(token, raw.frame(b"second"))
    reactors.resume(token, [0, 0])
    for strange in (0, 2**63, 2**64 - 1, token + (1 << 20)):
        reactors.reply(strange, raw.frame(b"x"))
        reactors.set_principal(strange, 1)
        reactors.close_connection(strange)
    assert connection.receive() == b"first"
    assert connection.quiet(0.1)


def test_watched_connection_is_reported_closed(reactors, connection):
    connection.send(raw.frame(raw.header(raw.METADATA, 0)))
    [event] = polled(reactors)
    reactors.set_interest(event.connection)
    reactors.reply(event.token, raw.frame(b"answer"))
    connection.receive()
    connection.close()
    [closed] = polled(reactors)
    assert type(closed) is Closed and closed.connection == event.connection
    reactors.set_interest(event.connection)
    [closed] = polled(reactors)
    assert type(closed) is Closed and closed.connection == event.connection


def test_python_can_close_a_connection(reactors, connection):
    connection.send(raw.frame(raw.header(raw.METADATA, 0)))
    [event] = polled(reactors)
    reactors.close_connection(event.connection)
    assert connection.closed()
    reactors.reply(event.token, raw.frame(b"too late"))


def test_poll_never_blocks_and_limits_the_number_of_events(reactors):
    assert reactors.poll() == []
    port = reactors.listen(0, "127.0.0.1", 0, 1500)
    wave = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
    for stream in wave:
        stream.sendall(raw.frame(raw.header(raw.METADATA, 0)))
    events = polled(reactors, 400)
    assert len({event.token for event in events}) == 400 <= POLL_EVENTS_MAX
    for event in events:
        reactors.reply(event.token, raw.frame(b"x"))
    for stream in wave:
        assert stream.recv(100) == raw.frame(b"x")
        stream.close()


def test_requests_of_closed_connections_count_until_python_has_dropped_them():
    clients, body_bytes, limit = 30, 200_000, 1 << 20
    reactors = made(1, input_bytes_max=limit)
    port = reactors.listen(3, "127.0.0.1", 0, 64)
    reactors.start()
    kept = []

    def send(to) -> None:
        to.send(raw.frame(raw.header(raw.METADATA, 9) + bytes(body_bytes)))

    def poll_until_idle() -> None:
        while select.select([reactors], [], [], 0.3)[0]:
            kept.extend(reactors.poll())

    for _ in range(clients):
        with raw.Connection(port) as one:
            send(one)
        kept.extend(reactors.poll())
    poll_until_idle()
    assert len(kept) * body_bytes <= limit + body_bytes
    with raw.Connection(port) as late:
        while len(kept) * body_bytes < limit:
            with raw.Connection(port) as one:
                send(one)
                poll_until_idle()
        send(late)
        assert not select.select([reactors], [], [], 0.3)[0]
        # No other event wakes the reactor.
        kept.clear()
        polled(reactors, wait_s=60)
    reactors.stop(1000)


@pytest.mark.parametrize("key", [raw.PRODUCE, raw.METADATA])
def test_the_number_of_unfreed_bytes_returns_to_zero(key):
    reactors = made(1, input_bytes_max=1 << 16)
    with raw.Connection(reactors.listen(3, "127.0.0.1", 0, 64)) as one:
        reactors.start()
        body = bytes(20_000) if key == raw.METADATA else raw.produce_body(
            9, "t" * 249, [(0, raw.batch())])
        for number in range(500):
            one.send(raw.frame(raw.header(key, 9, number) + body))
            [event] = polled(reactors, wait_s=60)
            if key == raw.METADATA:
                reactors.reply(event.token, raw.frame(number.to_bytes(4, "big")))
            else:
                reactors.resume(event.token, [29])
            assert one.receive()[:4] == number.to_bytes(4, "big")
    reactors.stop(1000)


def test_used_port_and_foreign_host_raise_os_error(reactors):
    port = reactors.listen(0, "127.0.0.1", 0, 10)
    for host, number in [("127.0.0.1", port), ("", port), ("no.such.host.invalid", 0),
                         ("192.0.2.1", 0)]:
        with pytest.raises(OSError, match=f"{host}:{number}"):
            reactors.listen(1, host, number, 10)


def test_every_interface_and_every_address_of_a_name_share_one_port(reactors):
    port = reactors.listen(0, "", 0, 10)
    for address in ("127.0.0.1", "::1"):
        socket.create_connection((address, port)).close()
    port = reactors.listen(0, "localhost", 0, 10)
    for *_, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        socket.create_connection(address[:2]).close()


def test_listeners_close_while_connections_stay(reactors, connection):
    connection.send(raw.frame(raw.header(raw.METADATA, 0)))
    [event] = polled(reactors)
    reactors.reply(event.token, raw.frame(b"x"))
    connection.receive()
    port = connection.socket.getpeername()[1]
    reactors.stop_accepting()
    end_s = time.monotonic() + 5
    with pytest.raises(ConnectionRefusedError):
        while time.monotonic() < end_s:
            socket.create_connection(("127.0.0.1", port)).close()
    connection.send(raw.frame(raw.header(raw.METADATA, 0)))
    assert type(polled(reactors)[0]) is RequestContext


def test_statistics_count_what_happened(reactors, connection):
    connection.send(raw.frame(raw.header(raw.METADATA, 0)))
    [event] = polled(reactors)
    stats = reactors.stats()
    assert stats["connections"] == stats["requests_control"] == stats["requests_in_flight"] == 1
    assert stats["fetch_sessions"] == 0 < stats["bytes_in"]
    reactors.reply(event.token, None)


def test_reactors_that_never_started_are_freed():
    idle = made()
    port = idle.listen(0, "127.0.0.1", 0, 10)
    stream = socket.create_connection(("127.0.0.1", port))
    idle.reply(1, raw.frame(b"x"))
    del idle
    with pytest.raises(OSError):
        stream.sendall(b"x")
        assert stream.recv(1) == b""
        raise ConnectionResetError


@pytest.mark.parametrize("threads", [0, -1, THREADS_MAX + 1])
def test_invalid_number_of_threads_is_rejected(threads):
    with pytest.raises(ValueError, match="network_threads"):
        made(threads)


def test_invalid_api_key_is_rejected():
    with pytest.raises(ValueError, match="api key 4711"):
        made(api_versions=[(4711, 0, 1, 0)])
