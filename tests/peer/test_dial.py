"""Connections for threads that may block."""

import socket
import time

import pytest

from pylog.testing.ports import free_port
from pylog.peer.dial import dial
from pylog.peer.errors import PeerError


def test_a_dialled_socket_sends_small_frames_at_once_and_does_not_block():
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = dial("127.0.0.1", server.getsockname()[1], time.monotonic_ns)
        with made.socket:
            assert made.socket.gettimeout() == 0
            assert made.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert made.tls is None and made.login_ms == 0


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".b"])
def test_unresolvable_name_is_a_peer_error(host):
    with pytest.raises(PeerError, match=f"^{host}:9092: "):
        dial(host, 9092, time.monotonic_ns)


def test_a_port_that_refuses_is_a_peer_error():
    port = free_port()
    with pytest.raises(PeerError, match=f"127.0.0.1:{port}"):
        dial("127.0.0.1", port, time.monotonic_ns)
