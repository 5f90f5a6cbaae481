"""Cut links: sockets of this process that are deaf to what the other end sends.

Owns: filters on sockets, until other rules are in force.
Invariants: (1) the rules that were given last are in force on every socket, and no others; (2) what
  is cut ends no connection: bytes and their acknowledgements do not arrive, and a dial is not
  answered, as with a cable that is unplugged.
Source: Linux' socket filters: a packet that a socket's filter does not let through is dropped, and
  sent again by the other side's TCP.
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

# One instruction: return 0, which lets nothing of a packet through.
_DEAF = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0), 8)
_PROGRAM = struct.pack("@HP", 1, ctypes.addressof(_DEAF))


class Rules:
    """Which sockets are deaf: listeners and what they accepted, by their own address; listeners
    alone, which cannot be dialled then; connections that were dialled, by the address there."""

    def __init__(self) -> None:
        self.accepted: set[Address] = set()
        self.listeners: set[Address] = set()
        self.dialled: set[Address] = set()

    def apply_to(self, made: socket.socket) -> None:
        """Puts them into force on one socket. Keeps (1)."""
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
    """Puts rules into force on every TCP socket of this process that has an address of the cluster
    on one of its ends. host_prefix: of its brokers' addresses."""
    # Keeps (1): what was dialled after the list was made, and before its listener was deaf, is in
    # the next list.
    for _ in range(2):
        _apply_once(rules, host_prefix)


def _apply_once(rules: Rules, host_prefix: str) -> None:
    for name in listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            # A copy: the number may be another connection's by the time it is looked at.
            descriptor = os.dup(int(name))
        except OSError:
            continue
        with socket.socket(fileno=descriptor) as made, contextlib.suppress(OSError):
            # One whose connection ended meanwhile has no address any more.
            if made.family == socket.AF_INET and made.type == socket.SOCK_STREAM \
                    and _is_of(made, host_prefix):
                rules.apply_to(made)


def _is_of(made: socket.socket, host_prefix: str) -> bool:
    if made.getsockname()[0].startswith(host_prefix):
        return True
    return made.getpeername()[0].startswith(host_prefix)
