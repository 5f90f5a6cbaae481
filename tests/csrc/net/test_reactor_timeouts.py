"""Incomplete frames, and the timeouts that close their connections."""

import struct
import time

import pytest

from tests.csrc.net.reactor_process import ReactorServer
from tests.wire.raw import PRODUCE

FRAME_S = 30
pytestmark = pytest.mark.timeout(300)  # the first test builds


def test_frame_that_stops_inside_its_bytes_closes_its_connection_after_30_s():
    """The timeout does not depend on the received amount: a large buffer shrinks in between."""
    beginnings = [struct.pack(">i", 1000), struct.pack(">i", 1000) + b"x" * 900,
                  struct.pack(">i", 1 << 20) + b"x" * 10,
                  struct.pack(">i", 1 << 20) + bytes(400_000)]
    with ReactorServer(threads=1) as server:
        held = [server.connect() for _ in beginnings]
        begin_s = time.monotonic()
        for connection, beginning in zip(held, beginnings, strict=True):
            connection.send(beginning)
        with server.connect() as neighbour:
            while time.monotonic() - begin_s < FRAME_S - 3:
                time.sleep(0.5)
                assert neighbour.ask(PRODUCE, "A") == b"A\0\0\0\0"
            assert server.stats()["frames_late"] == 0
            for connection in held:
                assert connection.closed(wait_s=30)
            assert server.stats()["frames_late"] == len(held)
            assert neighbour.ask(PRODUCE, "A") == b"A\0\0\0\0"
