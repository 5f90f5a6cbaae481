"""Threads, listeners and limits change while the reactors run and serve."""

import threading
import time

import pytest

from tests.csrc.net.reactor_process import ReactorServer
from tests.fixtures.waits import until
from tests.wire.raw import METADATA, PRODUCE, Closed

pytestmark = pytest.mark.timeout(300)  # the first test builds


def accepted(server: ReactorServer):
    """Return an accepted connection: a connection that just closed may still be counted."""
    end_s = time.monotonic() + 5
    while True:
        c = server.connect()
        try:
            c.ask(METADATA, "e", 1)
            return c
        except (Closed, ConnectionError):
            c.close()
            assert time.monotonic() < end_s, "it is never served"
            time.sleep(0.01)


def refused(server: ReactorServer) -> bool:
    try:
        with server.connect() as c:
            return c.closed()
    except ConnectionError:
        return True


def test_added_threads_take_connections_of_the_same_port():
    with ReactorServer(threads=1) as server:
        assert server.command("3") == 3
        opened = [server.connect() for _ in range(30)]
        for c in opened:
            assert c.ask(METADATA, "e", 1) == b"e\0\0\0\1"
        for c in opened:
            c.close()


def test_consecutive_connections_go_to_different_threads():
    with ReactorServer(threads=2) as server:
        opened, served_by = [], []
        for _ in range(24):
            opened.append(server.connect())
            served_by.append(opened[-1].ask(PRODUCE, "G"))
        # Wherever the kernel accepts the first of a pair, the second restores the balance.
        assert all(len(set(served_by[at:at + 2])) == 2 for at in range(0, 24, 2)), served_by
        for c in opened:
            c.close()


def test_connections_of_a_removed_thread_close_after_their_responses():
    with ReactorServer(threads=2) as server:
        opened = [server.connect() for _ in range(8)]
        for i, c in enumerate(opened):
            assert c.ask(METADATA, "e", 1) == b"e\0\0\0\1"
            c.post(PRODUCE, 1000 + i, "W", 1000)
        until(lambda: server.stats()["requests_produce"] == 8)
        assert server.command("1") == 1
        ended = 0
        for i, c in enumerate(opened):
            assert c.take(1000 + i) == b"woken"
            try:
                c.ask(METADATA, "e", 2)
            except (Closed, ConnectionError):
                ended += 1
            c.close()
        assert ended == 4
        with server.connect() as c:
            assert c.ask(METADATA, "e", 3) == b"e\0\0\0\3"


def test_threads_are_added_and_removed_under_load():
    with ReactorServer(threads=2) as server:
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                try:
                    with server.connect() as c:
                        for i in range(5):
                            c.ask(METADATA, "e", i)
                            c.ask(PRODUCE, "W", 1)
                except (Closed, ConnectionError):
                    continue

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        for letter in "4213142312":
            assert server.command(letter) == int(letter)
        stop.set()
        for thread in threads:
            thread.join()
        with server.connect() as c:
            assert c.ask(METADATA, "e", 3) == b"e\0\0\0\3"


def test_closed_listener_closes_its_connections():
    with ReactorServer() as server:
        with server.connect() as c:
            assert c.ask(METADATA, "e", 1) == b"e\0\0\0\1"
            c.post(PRODUCE, 77, "W", 1000)
            until(lambda: server.stats()["requests_produce"] == 1)
            server.command("u")
            assert c.take(77) == b"woken"
            assert c.closed()
        assert refused(server)


def test_limits_of_an_address_change_immediately():
    with ReactorServer() as server:
        with server.connect() as c, server.connect() as d:
            c.ask(METADATA, "e", 1)
            d.ask(METADATA, "e", 1)
            server.command("l")
            assert refused(server)
            d.ask(METADATA, "e", 1)
        with accepted(server):
            assert refused(server)
            server.command("o")
            with accepted(server):
                assert refused(server)
