"""Connections, response order, waits, misses, limits and closing, seen from the client's side.

The reactor runs with a stub of serve (reactor_server.c) and the address sanitizer; at its end every
server must have released all requests, ranges and buffers.
"""

import contextlib
import os
import re
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.csrc.net.reactor_process import ReactorServer, do, parsed, request
from tests.fixtures.waits import until
from tests.wire.raw import API_VERSIONS, FETCH, METADATA, PRODUCE, Closed, frame, header

pytestmark = pytest.mark.timeout(300)  # the first test builds
SO_TIMESTAMPNS = 35
FILE = struct.pack(">1000000I", *range(1_000_000))


@pytest.fixture(scope="module")
def server():
    with ReactorServer() as running:
        yield running


def test_each_result_of_serve_gets_its_response(server):
    with server.connect() as c:
        assert c.ask(PRODUCE, "A", 7, b"body") == b"A\0\0\0\x07body"
        assert c.ask(PRODUCE, "W", 5) == b"woken"
        assert c.ask(PRODUCE, "X", 5) == b"woken"
        assert c.ask(FETCH, "W", 1) == b"woken"
        assert c.ask(FETCH, "D", 20) == b"timeout"
        assert struct.unpack("<I", c.ask(PRODUCE, "J", 5, b"\1\2\3")) == (74 + 5 + 6,)


def test_reactor_waits_for_a_job_beyond_the_requests_deadline(server):
    with server.connect() as c:
        assert struct.unpack("<I", c.ask(FETCH, "K", 30, b"\1")) == (75 + 30 + 1,)


@pytest.mark.parametrize("length", [0, 1, 16384, 16385, 100_000, 3_000_000])
def test_ranges_of_files_arrive_between_bytes(server, length):
    with server.connect() as c:
        assert c.ask(FETCH, "R", length) == FILE[8:8 + length] + b"between!"
        two = FILE[8:8 + length] + b"between" + FILE[4104:4104 + length] + b"!"
        assert c.ask(FETCH, "B", length) == two


def test_miss_resumes_with_a_verdict_per_name(server):
    with server.connect() as c:
        assert c.ask(PRODUCE, "M", 4) == b"M\1M\3"
        assert c.ask(FETCH, "M", 1) == b"M"
        big = c.ask(PRODUCE, "M", 60_000)
        assert big[:6] == b"M\1M\3M\5"


def test_control_requests_carry_addresses_and_the_principal(server):
    with server.connect() as c:
        port = c.socket.getsockname()[1]
        where = f"::ffff:127.0.0.1 {server.port} ::ffff:127.0.0.1 {port} 7"
        assert c.ask(METADATA, "l").decode() == f"{where} 0"
        c.ask(METADATA, "p", 42)
        assert c.ask(METADATA, "l").decode() == f"{where} 42"


def test_control_plane_can_skip_the_response_and_close_after_it(server):
    with server.connect() as c:
        c.post(METADATA, 1, "n")
        assert c.ask(METADATA, "e", 1) == b"e\0\0\0\1"
        assert c.ask(METADATA, "q", 1) == b"q\0\0\0\1"
        assert c.closed()
    with server.connect() as c:
        c.post(METADATA, 1, "k")
        assert c.closed()


def test_responses_have_the_order_of_their_requests(server):
    with server.connect() as c:
        c.send(b"".join(request(PRODUCE, i, "W", 30 - i) for i in range(30)))
        assert [c.take(i) for i in range(30)] == [b"woken"] * 30
        mixed = [(PRODUCE, "W", 20), (PRODUCE, "A", 0), (FETCH, "D", 10), (METADATA, "e", 0),
                 (PRODUCE, "M", 2), (PRODUCE, "X", 10), (PRODUCE, "A", 0), (FETCH, "R", 50_000)]
        c.send(b"".join(request(key, i, *what) for i, (key, *what) in enumerate(mixed)))
        for i in range(len(mixed)):
            c.take(i)


def test_queued_requests_are_answered_in_order(server):
    with server.connect() as c, server.connect() as gone:
        gone.send(b"".join(request(PRODUCE, i, "QW"[i % 2], 50) for i in range(10)))
        gone.close()
        c.send(b"".join(request(PRODUCE, i, "QQAQW"[i % 5], 1) for i in range(200)))
        answers = [c.take(i) for i in range(200)]
        assert [a for i, a in enumerate(answers) if i % 5 in (0, 1, 3)] == [b"appended"] * 120


def test_200_pipelined_requests_get_200_responses_in_order(server):
    with server.connect() as c:
        c.send(b"".join(request(METADATA, i, "e", i) for i in range(200)))
        for i in range(200):
            assert c.take(i) == b"e" + struct.pack(">I", i)


def test_produces_wait_in_parallel_and_others_in_sequence(server):
    with server.connect() as c:
        begin_s = time.monotonic()
        c.send(b"".join(request(PRODUCE, i, "W", 1000) for i in range(10)))
        for i in range(10):
            c.take(i)
        assert time.monotonic() - begin_s < 9
        begin_s = time.monotonic()
        c.send(b"".join(request(FETCH, i, "D", 50) for i in range(4)))
        for i in range(4):
            c.take(i)
        assert time.monotonic() - begin_s > 0.19


def test_request_without_a_response_does_not_block_the_next(server):
    with server.connect() as c:
        c.send(b"".join(request(PRODUCE, i, "S") for i in range(100)) + request(PRODUCE, 5, "A", 1))
        assert c.take(5) == b"A\0\0\0\1"


def test_a_request_that_arrives_byte_by_byte_is_served(server):
    with server.connect() as c:
        for byte in request(PRODUCE, 9, "A", 0, b"slowly"):
            c.send(bytes([byte]))
        assert c.take(9).endswith(b"slowly")


@pytest.mark.parametrize("length", [1000, 65_000, 70_000, 300_000, 1 << 20, 9_000_000])
def test_bodies_of_any_size_arrive_completely(server, length):
    body = FILE[:length] * (1 + length // len(FILE))
    with server.connect() as c:
        for _ in range(3):
            assert c.ask(PRODUCE, "A", 0, body[:length]) == b"A\0\0\0\0" + body[:length]
        c.send(b"".join(request(PRODUCE, i, "J", i, body[:length // 4]) for i in range(4)))
        sums = {c.take(i) for i in range(4)}
        assert len(sums) == 4


def test_large_body_in_small_chunks_arrives_completely(server):
    body = FILE[:1000] * 400
    with server.connect() as c:
        for _ in range(3):
            frame = request(PRODUCE, 1, "A", 0, body)
            for at in range(0, len(frame), 3001):
                c.send(frame[at:at + 3001])
            assert c.take(1) == b"A\0\0\0\0" + body
            assert c.ask(PRODUCE, "A", 0, b"small") == b"A\0\0\0\0small"


def test_client_that_disconnects_during_a_large_body_is_released(server):
    with server.connect() as c:
        c.send(request(PRODUCE, 1, "A", 0, FILE[:1000] * 400)[:300_000])
    until(lambda: server.stats()["connections"] == 1, 10)  # Before the frame times out.


def test_a_body_stays_in_place_while_later_bytes_arrive(server):
    with server.connect() as c:
        second = request(PRODUCE, 2, "A", 0, b"x" * 100)
        c.send(request(PRODUCE, 1, "J", 100, b"\1" * 1000) + second[:60])
        time.sleep(0.02)
        c.send(second[60:] + request(PRODUCE, 3, "J", 1, b"\1" * 70_000))
        assert struct.unpack("<I", c.take(1)) == (74 + 100 + 1000,)
        assert c.take(2).endswith(b"x" * 100)
        assert struct.unpack("<I", c.take(3)) == (74 + 1 + 70_000,)


def test_silent_requests_before_the_end_of_input_still_count(server):
    before = server.stats()["requests_produce"]
    with server.connect() as c:
        c.send(b"".join(request(PRODUCE, i, "M" if i == 0 else "S", 1) for i in range(50)))
    until(lambda: server.stats()["requests_produce"] == before + 50)


@pytest.mark.parametrize("letter", ["H", "J", "D", "W", "X", "M"])
@pytest.mark.parametrize("reset", [False, True])
def test_client_that_disconnects_while_its_request_waits_is_released(server, letter, reset):
    if letter == "H" and not reset:
        key = FETCH  # no client would wait for its response; a Produce ends by its own deadline
    else:
        key = PRODUCE
    c = server.connect()
    c.post(key, 1, letter, 50, b"x" * 5000)
    time.sleep(0.02)
    if reset:
        c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
    until(lambda: server.stats()["connections"] == 1)
    until(lambda: server.stats()["requests_in_flight"] == 1)


def test_produce_is_answered_after_end_of_input(server):
    with server.connect() as c:
        c.post(PRODUCE, 1, "W", 50)
        c.socket.shutdown(socket.SHUT_WR)
        assert c.take(1) == b"woken"
        assert c.closed()


def test_a_watched_connection_is_reported_when_it_ends(server):
    with server.connect() as other:
        before = int(other.ask(METADATA, "c"))
        with server.connect() as c:
            c.ask(METADATA, "w")
        until(lambda: int(other.ask(METADATA, "c")) == before + 1)


def test_invalid_request_closes_the_connection_after_earlier_responses(server):
    with server.connect() as c:
        c.send(request(PRODUCE, 1, "W", 50) + request(PRODUCE, 2, "C"))
        assert c.take(1) == b"woken"
        assert c.closed()
    with server.connect() as c:
        c.send(request(PRODUCE, 1, "W", 20) + frame(b"nonsense"))
        assert c.take(1) == b"woken"
        assert c.closed()


def test_api_versions_of_an_unknown_version_is_passed_on(server):
    with server.connect() as c:
        c.send(frame(header(API_VERSIONS, 99, 5, flexible=True) + b"ewhat"))
        assert c.take(5) == b"ewhat"


def test_declared_lengths_allocate_no_memory():
    with ReactorServer("") as server:
        server.stats()
        before = server.resident_bytes()
        held = [server.connect() for _ in range(100)]
        for c in held:
            c.send(struct.pack(">i", 100 << 20) + b"\0\0\0\x09")
        server.stats()
        assert server.resident_bytes() - before < 100 * 100_000
        time.sleep(1.6)
        assert server.stats()["input_bytes"] < 100 * 1024 + 200_000
        for c in held:
            c.close()


def test_input_buffers_stay_below_their_limit_and_all_clients_progress():
    body = FILE[:600_000]

    def send_and_take(server):
        for i in range(3):
            frame_bytes, answered = request(PRODUCE, i, "A", 0, body), False
            # A client that this machine delays is closed like a stalled one, and reconnects.
            while not answered:
                with contextlib.suppress(Closed), server.connect(wait_s=30) as c:
                    c.send(frame_bytes[:300_000])
                    time.sleep(0.2)
                    c.send(frame_bytes[300_000:])
                    assert c.take(i) == b"A\0\0\0\0" + body
                    answered = True

    with ReactorServer(input_bytes=2_000_000, threads=1) as server, ThreadPoolExecutor(12) as pool:
        done = [pool.submit(send_and_take, server) for _ in range(12)]
        most = 0
        while not all(one.done() for one in done):
            most = max(most, server.stats()["input_bytes"])
        for one in done:
            one.result()
        assert most < 2_000_000 + (2 << 20)
        assert server.stats()["input_waits"] > 0


def test_stalled_frames_are_closed_when_others_need_space():
    body = FILE[:2_000_000]
    with ReactorServer(input_bytes=8_000_000, threads=1) as server:
        stalled = [server.connect() for _ in range(8)]
        for c in stalled:
            c.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                c.socket.send(request(PRODUCE, 1, "A", 0, body)[:1_500_000])
        with server.connect() as c:
            begin_s = time.monotonic()
            c.ask(PRODUCE, "A")
            assert time.monotonic() - begin_s < 10
            assert c.ask(PRODUCE, "A", 0, body) == b"A\0\0\0\0" + body
        for c in stalled:
            c.close()


def test_client_that_never_reads_holds_one_response():
    with ReactorServer(send_buffer=100_000) as server:
        with server.connect() as c:
            c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
            c.send(b"".join(request(METADATA, i, "e", i, b"x" * 100_000) for i in range(20)))
            time.sleep(0.2)
            assert server.stats()["requests_control"] < 10
            for i in range(20):
                assert len(c.take(i)) == 100_005


def test_client_with_large_responses_does_not_starve_others():
    with ReactorServer(threads=1) as server:
        with server.connect() as big, server.connect() as small:
            big.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            big.send(b"".join(request(FETCH, i, "R", 60_000_000) for i in range(3)))
            small.ask(PRODUCE, "A")
            for _ in range(3):
                left = struct.unpack(">i", big._take(4))[0]
                while left:
                    left -= len(big._take(min(left, 10_000_000)))
                    begin_s = time.monotonic()
                    small.ask(PRODUCE, "A")
                    assert time.monotonic() - begin_s < 10


def arrived_ns(stream: socket.socket) -> int:
    """Receive the next byte and return the time at which it arrived in the kernel."""
    _, [(_, _, stamp)], _, _ = stream.recvmsg(1, 64)
    seconds, nanoseconds = struct.unpack("qq", stamp)
    return seconds * 10**9 + nanoseconds


def is_stopped(pid: int) -> bool:
    """Return True if all threads are stopped: a running one would still handle events."""
    states = [task.joinpath("stat").read_text().rpartition(") ")[2][0]
              for task in Path(f"/proc/{pid}/task").iterdir()]
    return set(states) == {"T"}


def test_long_response_continues_after_requests_of_other_clients():
    with ReactorServer(threads=1) as server, server.connect() as big, server.connect() as small:
        for c in (big, small):
            c.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        small.ask(PRODUCE, "A")
        big.post(FETCH, 0, "R", 60_000_000)
        # Until the sockets are full: a turn that SIGSTOP interrupts would continue its work first.
        sent = [0]
        while sent.count(sent[-1]) < 10 or not sent[-1]:
            time.sleep(0.02)
            sent.append(server.stats()["bytes_sendfile"])
        os.kill(server.process.pid, signal.SIGSTOP)
        until(lambda: is_stopped(server.process.pid))
        with contextlib.suppress(TimeoutError):
            big.socket.settimeout(0.3)
            while big.socket.recv(1 << 20):
                pass
        big.socket.settimeout(10)
        small.post(PRODUCE, 1, "A")
        os.kill(server.process.pid, signal.SIGCONT)
        assert arrived_ns(small.socket) < arrived_ns(big.socket)


def test_connections_beyond_the_limit_for_an_address_are_closed():
    with ReactorServer(per_ip=5) as server:
        held = [server.connect() for _ in range(5)]
        for c in held:
            c.ask(PRODUCE, "A")
        assert server.connect().closed()
        held.pop().close()
        until(lambda: not server.connect().closed(0.05))
        assert parsed(held[0].ask(METADATA, "s").decode())["connections_refused"] >= 1
        for c in held:
            c.close()


def test_connections_beyond_the_limit_wait_until_another_closes():
    with ReactorServer(connections=3) as server:
        held = [server.connect() for _ in range(3)]
        for c in held:
            c.ask(PRODUCE, "A")
        with server.connect() as late:
            late.post(PRODUCE, 1, "A")
            assert late.quiet(0.2)
            held.pop().close()
            assert late.take(1) == b"A\0\0\0\0"
        for c in held:
            c.close()


def test_without_descriptors_new_connections_wait_and_old_ones_are_served():
    with ReactorServer("", descriptors_max=40, threads=1) as server:
        held = [server.connect() for _ in range(60)]
        assert held[0].ask(PRODUCE, "A") == b"A\0\0\0\0"
        held[-1].post(PRODUCE, 1, "A")
        assert held[-1].quiet(0.2)
        for c in held[:-1]:
            c.close()
        assert held[-1].take(1) == b"A\0\0\0\0"
        assert parsed(held[-1].ask(METADATA, "s").decode())["accept_pauses"] > 0
        held[-1].close()


@pytest.mark.slow
def test_incomplete_frame_closes_its_connection_after_30_s():
    with ReactorServer() as server, server.connect() as c, server.connect() as late:
        begin_s = time.monotonic()
        c.send(struct.pack(">i", 1000))
        while time.monotonic() - begin_s < 25:
            time.sleep(1)
            c.send(b"x")
            late.ask(PRODUCE, "A")
        assert c.closed(seconds=10)
        assert 29 < time.monotonic() - begin_s < 33
        assert server.stats()["frames_late"] == 1


def test_client_that_never_reads_has_one_request_in_progress(server):
    with server.connect() as c:
        c.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for i in range(3000):
                c.socket.send(request(METADATA, i, "e", i, b"x" * 10_000))
        time.sleep(0.2)
        stats = server.stats()
        assert stats["input_bytes"] < 1_000_000
        c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: server.stats()["connections"] == 1)


def test_idle_connection_is_closed_and_busy_one_is_not():
    with ReactorServer(idle_ms=1500) as server:
        with server.connect() as idle, server.connect() as waiting, server.connect() as busy:
            waiting.post(FETCH, 1, "D", 2500)
            for _ in range(25):
                busy.ask(PRODUCE, "A")
                time.sleep(0.1)
            assert idle.closed(0.05)
            assert waiting.take(1) == b"timeout"
            busy.ask(PRODUCE, "A")
        assert server.stats()["connections_idle"] == 1


def test_requests_wait_while_the_control_queue_is_full():
    with ReactorServer(queued=3, control_pause_ms=50) as server:
        clients = [server.connect() for _ in range(20)]
        for i, c in enumerate(clients):
            c.post(METADATA, i, "e", i)
        for i, c in enumerate(clients):
            assert c.take(i) == b"e" + struct.pack(">I", i)
            c.close()
        assert server.stats()["queue_waits"] > 0


def test_second_listener_on_the_same_port_is_rejected(server):
    taken = ReactorServer(port=str(server.port))
    assert taken.port < 0
    taken.process.communicate()
    assert taken.process.returncode == 1


def test_ipv6_clients_are_served_with_their_address():
    with ReactorServer(port=":0") as server, socket.create_connection(("::1", server.port)) as s:
        s.sendall(request(METADATA, 1, "l"))
        assert re.match(rb"::1 \d+ ::1 \d+ 7 0", s.recv(1000)[8:])


def test_stop_answers_requests_in_flight_and_closes():
    with ReactorServer(drain_ms=10_000) as server:
        with server.connect() as fetch, server.connect() as produce, server.connect() as idle:
            idle.ask(PRODUCE, "A")
            # The request itself; its response may arrive before the counter decreases.
            until(lambda: server.stats()["requests_in_flight"] == 1)
            fetch.post(FETCH, 1, "D", 60_000)
            produce.post(PRODUCE, 1, "W", 2000)
            # Requests that the reactor has not read are not in flight.
            until(lambda: server.stats()["requests_in_flight"] == 3)
            server.process.stdin.close()
            server.process.stdin = None
            assert fetch.take(1) == b"timeout"
            assert produce.take(1) == b"woken"
            assert fetch.closed() and produce.closed() and idle.closed()
            server.stop()


def test_stop_drops_requests_that_are_not_answered_in_time():
    with ReactorServer(drain_ms=100) as server:
        with server.connect() as hung, server.connect() as job, server.connect() as control:
            hung.post(PRODUCE, 1, "H")
            job.post(PRODUCE, 1, "J", 600)
            control.post(METADATA, 1, "h")
            time.sleep(0.1)
            server.process.stdin.close()
            server.process.stdin = None
            server.stop()
            with pytest.raises(Closed):
                hung.receive()


def test_throttled_connection_is_answered_at_once_and_then_muted(server):
    for key, letter in ((PRODUCE, "T"), (FETCH, "T"), (METADATA, "t")):
        with server.connect() as c, server.connect() as other:
            start_s = time.monotonic()
            c.send(request(key, 1, letter, 1500) + request(key, 2, "A" if key < 3 else "e", 5))
            c.take(1)
            answered_s = time.monotonic() - start_s
            assert other.ask(PRODUCE, "A", 1) == b"A\0\0\0\1"
            others_s = time.monotonic() - start_s
            c.take(2)
            assert answered_s < 1.4 and others_s < 1.4, (answered_s, others_s)
            assert time.monotonic() - start_s >= 1.49


def test_request_without_a_response_throttles_later_requests(server):
    with server.connect() as c:
        start_s = time.monotonic()
        c.send(request(PRODUCE, 1, "U", 300) + request(PRODUCE, 2, "A", 5))
        c.take(2)
        assert time.monotonic() - start_s >= 0.29


def test_nothing_is_read_from_a_muted_connection(server):
    large = request(PRODUCE, 2, "A", 5, bytes(50 << 20))
    with server.connect() as c:
        c.send(request(PRODUCE, 1, "T", 2000))
        c.take(1)
        before = server.stats()["bytes_in"]
        c.socket.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            c.socket.sendall(large)
        taken = server.stats()["bytes_in"] - before
        assert taken < 1 << 20, taken


def test_responses_in_flight_are_sent_on_a_muted_connection(server):
    with server.connect() as c:
        c.send(request(PRODUCE, 1, "W", 50) + request(PRODUCE, 2, "T", 10_000)
               + request(PRODUCE, 3, "A", 1))
        start_s = time.monotonic()
        c.take(1)
        c.take(2)
        assert time.monotonic() - start_s < 8
        assert c.quiet(0.2)


def test_muted_client_that_resets_is_released(server):
    with server.connect() as c:
        c.send(request(PRODUCE, 1, "T", 60_000))
        c.take(1)
        connections = server.stats()["connections"]
        c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: server.stats()["connections"] < connections)


def test_control_plane_is_queried_once_per_client():
    with ReactorServer(quotas=1) as server:
        with server.connect() as c, server.connect() as other:
            for number in range(5):
                assert c.ask(PRODUCE, "A", number)[:1] == b"A"
                assert other.ask(METADATA, "e", number)[:1] == b"e"
            assert c.ask(METADATA, "a") == b"1"
            named = raw_request(PRODUCE, 77, b"another client", "A")
            c.send(named + named)
            c.take(77), c.take(77)
            assert c.ask(METADATA, "a") == b"2"
            c.ask(METADATA, "v")
            assert c.ask(METADATA, "a") == b"3"
            other.ask(PRODUCE, "A", 1)
            assert c.ask(METADATA, "a") == b"3"
            c.ask(METADATA, "p", 9)
            assert c.ask(METADATA, "a") == b"4"


def raw_request(key: int, correlation_id: int, client_id: bytes, letter: str) -> bytes:
    return frame(header(key, 9, correlation_id, client_id) + do(letter))


def test_a_muted_connection_is_not_idle():
    with ReactorServer(idle_ms=1500) as server, server.connect() as c:
        c.send(request(PRODUCE, 1, "T", 2500))
        c.take(1)
        time.sleep(2.2)
        assert server.stats()["connections_idle"] == 0
        assert c.ask(PRODUCE, "A", 1)[:1] == b"A"
