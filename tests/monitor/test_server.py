"""Limits of a connection to the metrics endpoint, without a broker."""

import contextlib
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from pylog.monitor import server


@contextlib.contextmanager
def slowly(monkeypatch, step):
    """One side of a connection whose other side repeats `step` slowly."""
    monkeypatch.setattr(server, "SECONDS_MAX", 0.3)
    ours, theirs = socket.socketpair()

    def work():
        with contextlib.suppress(OSError):
            while step(theirs):
                time.sleep(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with ours:
            yield ours
    finally:
        theirs.close()
        thread.join()


def test_slow_http_request_times_out(monkeypatch):
    with slowly(monkeypatch, lambda there: there.send(b"x")) as ours, pytest.raises(TimeoutError):
        server._read_head(ours, time.monotonic)


def test_slowly_read_http_response_times_out(monkeypatch):
    with slowly(monkeypatch, lambda there: there.recv(1)) as ours, pytest.raises(TimeoutError):
        server._send(ours, bytes(16 << 20), time.monotonic)


def test_connection_without_a_free_thread_is_closed(monkeypatch):
    lacking = ["can't start new thread"]

    class Thread:
        def __init__(self, _name, run, *arguments):
            self.start = self.refuse if lacking else lambda: run(*arguments)

        def refuse(self):
            raise RuntimeError(lacking.pop())

    def serve(connection):
        with connection:
            connection.sendall(b"served")
        monitor._room.release()

    monitor = server.Monitor.__new__(server.Monitor)
    monitor._stopping, monitor._room = threading.Event(), threading.Semaphore(1)
    monitor._serve, monitor._socket = serve, socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(server, "supervisor", SimpleNamespace(thread_once=Thread))
    accepting = threading.Thread(target=monitor._accept)
    accepting.start()
    told = []
    for _ in range(2):
        with socket.create_connection(monitor._socket.getsockname()) as asking:
            asking.settimeout(10)
            told.append(asking.recv(100))
    monitor._stopping.set()
    monitor._socket.shutdown(socket.SHUT_RDWR)
    accepting.join(10)
    monitor._socket.close()
    assert told == [b"", b"served"]
