"""Parse a Fetch response in place: a partition's records are a view, not a copy.

Owns: nothing.
Invariants: never reads outside the frame: fields that do not fit raise ProtocolError.
Source: the Fetch response of protocol/schemas/produce_fetch.msg: versions 12 to 18 are parsed here,
  older ones by the codec.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from pylog._native.records import batch
from pylog.client.network.connection import Frame
from pylog.protocol import api, codec
from pylog.protocol.errors import ProtocolError

FLEXIBLE = 12
TOPIC_IDS = 13

_HEAD = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_INT32 = struct.Struct(">i")
_BATCH = struct.Struct(">qi")
_LEADER = struct.Struct(">ii")
_CURRENT_LEADER_TAG = 1


class FetchedPartition(NamedTuple):
    """One partition of a response. topic: a name, or an id from version 13 on."""

    topic: str | bytes
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    preferred_replica: int
    records: memoryview
    leader: tuple[int, int] | None  # (id, epoch) if the broker reports a newer leader


class FetchResponse(NamedTuple):
    throttle_ms: int
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


def read(frame: Frame) -> FetchResponse:
    """Parse the response in a frame. Raises ProtocolError."""
    if frame.version < FLEXIBLE:
        return _read_old(frame)
    try:
        return _Reader(frame.view, frame.body).response(frame.version)
    except (struct.error, IndexError) as broken:
        raise ProtocolError(f"Fetch response v{frame.version}: {broken}") from None


def end_of(records: memoryview) -> int | None:
    """Return the offset after the last complete batch, or None without one."""
    at, last, size = 0, -1, len(records)
    while at + batch.HEADER_BYTES <= size:
        length = _BATCH.unpack_from(records, at)[1]
        if length < batch.HEADER_BYTES - _BATCH.size or at + _BATCH.size + length > size:
            break
        last, at = at, at + _BATCH.size + length
    if last < 0:
        return None
    base = _BATCH.unpack_from(records, last)[0]
    return int(base + _INT32.unpack_from(records, last + batch.LAST_OFFSET_DELTA_AT)[0] + 1)


class _Reader:
    """A cursor over a response of a flexible version."""

    __slots__ = ("at", "data")

    def __init__(self, data: memoryview, at: int):
        self.data = data
        self.at = at

    def response(self, version: int) -> FetchResponse:
        throttle_ms, error_code, session_id = _HEAD.unpack_from(self.data, self.at)
        self.at += _HEAD.size
        found: list[FetchedPartition] = []
        for _ in range(self.varint() - 1):
            topic: str | bytes = self.take(16) if version >= TOPIC_IDS else self.name()
            for _ in range(self.varint() - 1):
                found.append(self.partition(topic))
            self.tags()
        self.tags()
        return FetchResponse(throttle_ms, error_code, session_id, found)

    def partition(self, topic: str | bytes) -> FetchedPartition:
        number, code, high, stable, start = _PARTITION.unpack_from(self.data, self.at)
        self.at += _PARTITION.size
        aborted = []
        for _ in range(self.varint() - 1):
            aborted.append(_ABORTED.unpack_from(self.data, self.at))
            self.at += _ABORTED.size
            self.tags()
        preferred = _INT32.unpack_from(self.data, self.at)[0]
        self.at += 4
        size = max(self.varint() - 1, 0)
        end = self.at + size
        if end > len(self.data):
            raise ProtocolError(f"Fetch response: {size} bytes of records do not fit")
        records = self.data[self.at:end]
        self.at = end
        leader = self.tags()
        return FetchedPartition(topic, number, code, high, stable, start, aborted, preferred,
                                records, leader)

    def varint(self) -> int:
        byte = self.data[self.at]
        self.at += 1
        if byte < 0x80:
            return byte
        value, shift = byte & 0x7F, 7
        while shift < 35:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ProtocolError("Fetch response: a varint of more than 32 bits")

    def take(self, size: int) -> bytes:
        found = bytes(self.data[self.at:self.at + size])
        if len(found) != size:
            raise ProtocolError("Fetch response: it ends too early")
        self.at += size
        return found

    def name(self) -> str:
        return self.take(self.varint() - 1).decode("utf-8", "replace")

    def tags(self) -> tuple[int, int] | None:
        """Skip tagged fields. Returns the newer leader, if present."""
        leader = None
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            if tag == _CURRENT_LEADER_TAG and size >= _LEADER.size:
                leader = _LEADER.unpack_from(self.data, self.at)
            self.at += size
            if self.at > len(self.data):
                raise ProtocolError("Fetch response: a tagged field does not fit")
        return leader


def _read_old(frame: Frame) -> FetchResponse:
    response: Any = codec.decode_response(api.FETCH, frame.version, frame.view, frame.body)
    found = [
        FetchedPartition(
            topic.topic, row.partition_index, row.error_code, row.high_watermark,
            row.last_stable_offset, row.log_start_offset,
            [(aborted.producer_id, aborted.first_offset)
             for aborted in row.aborted_transactions or ()],
            row.preferred_read_replica, memoryview(row.records or b""), None)
        for topic in response.responses for row in topic.partitions
    ]
    return FetchResponse(response.throttle_time_ms, response.error_code, response.session_id, found)
