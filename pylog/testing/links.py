"""Network cuts: sockets of this process drop what the peer sends.

Owns: filters on sockets, until other rules are applied.
Invariants: exactly the last rules apply, to every socket; a cut closes no connection: data and
  acknowledgements do not arrive and connection attempts are not answered, as with an unplugged
  cable.
Source: Linux socket filters: packets that a filter rejects are dropped, and the peer's TCP
  retransmits them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from os import listdir

ATTACH_FILTER, DETACH_FILTER = 26, 27
Address = tuple[str, int]

# A BPF program with one instruction: return 0, which drops the packet.
_DEAF = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0), 8)
_PROGRAM = struct.pack("@HP", 1, ctypes.addressof(_DEAF))


class Rules:
    """The sockets to filter.

    accepted: listeners and their connections, by local address. listeners: listeners only, so that
    new connections fail. dialled: outgoing connections, by remote address.
    """

    def __init__(self) -> None:
        self.accepted: set[Address] = set()
        self.listeners: set[Address] = set()
        self.dialled: set[Address] = set()

    def apply_to(self, made: socket.socket) -> None:
        """Attach or detach the filter of one socket."""
        is_listener = made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        own = made.getsockname()
        deaf = own in self.accepted or is_listener and own in self.listeners or (
            not is_listener and made.getpeername() in self.dialled)
        if deaf:
            made.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, _PROGRAM)
        else:
            with contextlib.suppress(FileNotFoundError):
                made.setsockopt(socket.SOL_SOCKET, DETACH_FILTER, 0)


def apply(rules: Rules, host_prefix: str) -> None:
    """Apply the rules to all TCP sockets of this process in the cluster.

    host_prefix: of the brokers' addresses.
    """
    # Twice: a connection made after the first listing, and before its listener was filtered, is in
    # the second one.
    for _ in range(2):
        _apply_once(rules, host_prefix)


def _apply_once(rules: Rules, host_prefix: str) -> None:
    for name in listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            # A copy, because the descriptor number may be reused for another connection.
            descriptor = os.dup(int(name))
        except OSError:
            continue
        with socket.socket(fileno=descriptor) as made, contextlib.suppress(OSError):
            # A socket whose connection has just ended has no address any more.
            if made.family == socket.AF_INET and made.type == socket.SOCK_STREAM \
                    and _is_of(made, host_prefix):
                rules.apply_to(made)


def _is_of(made: socket.socket, host_prefix: str) -> bool:
    if made.getsockname()[0].startswith(host_prefix):
        return True
    return made.getpeername()[0].startswith(host_prefix)
