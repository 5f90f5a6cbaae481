"""Reads which member of which cluster an etcd data directory belongs to.

Owns: nothing.
Invariants: read only; bytes of the file are bounded and never trusted: a file that does not parse
  raises WalError.
Source: etcd's server/storage/wal (frames), walpb/record.proto, etcdserverpb Metadata.
"""

from __future__ import annotations

import os
from collections import namedtuple

HEAD_BYTES_MAX = 4096       # The metadata is the second record of each file.
LENGTH_MASK = (1 << 56) - 1     # The upper bits hold the padding.
METADATA = 1                # Of walpb.Record.type.

Identity = namedtuple("Identity", ("member_id", "cluster_id"))


class WalError(Exception):
    """The directory has no readable write-ahead log."""


def identity(directory: str) -> Identity:
    """Return the ids in the newest log file of etcd's data directory. Blocks. Raises WalError."""
    folder = os.path.join(directory, "member", "wal")
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".wal"))
        with open(os.path.join(folder, names[-1]), "rb") as file:
            head = file.read(HEAD_BYTES_MAX)
    except (OSError, IndexError) as error:
        raise WalError(f"{folder} has no log file: {error}") from None
    position = 0
    while position + 8 <= len(head):
        frame = int.from_bytes(head[position:position + 8], "little")
        length = frame & LENGTH_MASK
        padding = frame >> 56 & 7 if frame >> 63 else 0
        record = _fields(head[position + 8:position + 8 + length])
        if record.get(1) == METADATA:
            found = _fields(record.get(3, b""))
            return Identity(int(found.get(1, 0)), int(found.get(2, 0)))
        position += 8 + length + padding
    raise WalError(f"{folder}/{names[-1]} has no metadata")


def _fields(message: bytes) -> dict:
    """Return {field number: value} of a protobuf message with integers and bytes."""
    found: dict = {}
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        value, position = _varint(message, position)
        if tag & 7 == 2:
            if position + value > len(message):
                raise WalError("a field is longer than its record")
            found[tag >> 3] = message[position:position + value]
            position += value
        elif tag & 7 == 0:
            found[tag >> 3] = value
        else:
            raise WalError(f"a field has wire type {tag & 7}")
    return found


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return (value, position after it)."""
    value = 0
    for count in range(10):
        if position + count >= len(message):
            break
        byte = message[position + count]
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value & ((1 << 64) - 1), position + count + 1
    raise WalError("an integer does not end")
