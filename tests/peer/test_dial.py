"""Blocking connections."""

import socket

import pytest

from pylog.peer.dial import dial
from pylog.peer.errors import PeerError


def test_a_dialled_socket_blocks_and_sends_small_frames_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server, \
            dial("127.0.0.1", server.getsockname()[1]) as made:
        assert made.gettimeout() is None
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_refuses_is_a_peer_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(PeerError, match=f"127.0.0.1:{port}"):
        dial("127.0.0.1", port)
