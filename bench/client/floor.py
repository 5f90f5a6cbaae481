"""The lower bound of every client: the kernel's loopback path, and the codec's own library.

Owns: a child process at the other end of a socket, on the other cores.
Invariants: the bytes are those of the batches that the clients write or read; they are only sent or
  received, by the megabyte, and each batch is compressed or decompressed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from pylog._native.records import batch
from pylog._native.records.compress import compress, decompress
from pylog.client.config.settings import CODECS

PIECE_BYTES = 1 << 20
INFLATED_BYTES_MAX = 1 << 20
NOW_MS = 1_700_000_000_000


def peer(work: Callable[[socket.socket], Any]) -> socket.socket:
    """Return a connection to a child that runs `work` on its end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if os.fork() == 0:
            others = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
            if others:
                os.sched_setaffinity(0, others)
            try:
                work(server.accept()[0])
            finally:
                os._exit(0)
        return socket.create_connection(server.getsockname())


def drain(sock: socket.socket) -> None:
    buffer = bytearray(PIECE_BYTES)
    while sock.recv_into(buffer):
        pass


def payloads(values: list[bytes], batch_bytes: int) -> tuple[list[bytes], int]:
    """Return (the plain records of batches of about this size, records in each)."""
    count = min(max(batch_bytes // (len(values[0]) + 12), 1), len(values))
    return [batch.build([(None, value, NOW_MS, ()) for value in values[at:at + count]])[
        batch.HEADER_BYTES:] for at in range(0, len(values) - count + 1, count)], count


def write(codec: str, values: list[bytes], batch_bytes: int, clock: Any) -> None:
    """clock: bench.client.writers.Clock, restarted when the batches are ready."""
    plain, count = payloads(values, batch_bytes)
    number = CODECS.index(codec)
    with peer(drain) as sock:
        clock.start()
        while True:
            pieces = plain if not number else [compress(number, data) for data in plain]
            for piece in pieces:
                sock.sendall(piece)
            if not clock.goes_on(count * len(plain)):
                return


def read(codec: str, values: list[bytes], batch_bytes: int, clock: Any) -> None:
    """clock: bench.client.readers.Clock."""
    plain, count = payloads(values, batch_bytes)
    number = CODECS.index(codec)
    made = plain if not number else [compress(number, data) for data in plain]
    sent = b"".join(made)

    def feed(sock: socket.socket) -> None:
        try:
            while True:
                sock.sendall(sent)
        except OSError:
            pass  # The reader has read enough.

    with peer(feed) as sock:
        buffer = bytearray(len(sent))
        view = memoryview(buffer)
        while True:
            at = 0
            while at < len(sent):
                at += sock.recv_into(view[at:], min(PIECE_BYTES, len(sent) - at),
                                     socket.MSG_WAITALL)
            at = 0
            for piece in made if number else ():
                decompress(number, view[at:at + len(piece)], INFLATED_BYTES_MAX)
                at += len(piece)
            if not clock.add(count * len(made)):
                return
