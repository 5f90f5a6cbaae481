"""Decodes record batches and verifies checksums, independent of pylog's own code."""

import gzip
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import crc32c
import lz4.frame
import snappy
import zstandard

from tests.wire import raw

HEADER_BYTES = 61


@dataclass(frozen=True)
class Batch:
    base_offset: int
    last_offset: int
    attributes: int
    producer_id: int
    base_sequence: int
    count: int
    body: bytes
    size: int


def batches(data: bytes) -> Iterator[Batch]:
    """Yield the complete batches of fetched or stored bytes; a truncated one at the end is omitted.
    """
    at = 0
    while at + HEADER_BYTES <= len(data):
        base, length = struct.unpack_from(">qi", data, at)
        end = at + 12 + length
        if length <= 0 or end > len(data):
            return
        magic, crc = struct.unpack_from(">bI", data, at + 16)
        assert magic == 2, (magic, at)
        assert crc32c.crc32c(data[at + 21:end]) == crc, f"checksum differs at offset {base}"
        attributes, delta, _, _, producer_id, _, sequence, count = struct.unpack_from(
            ">hiqqqhii", data, at + 21)
        yield Batch(base, base + delta, attributes, producer_id, sequence, count,
                    data[at + HEADER_BYTES:end], end - at)
        at = end


def _plain(batch: Batch) -> bytes:
    codec = batch.attributes & 7
    if codec == raw.GZIP:
        return gzip.decompress(batch.body)
    if codec == raw.LZ4:
        return lz4.frame.decompress(batch.body)
    if codec == raw.ZSTD:
        return zstandard.ZstdDecompressor().decompressobj().decompress(batch.body)
    if codec == raw.SNAPPY:
        out, at = b"", 16
        while at < len(batch.body):
            size = struct.unpack_from(">i", batch.body, at)[0]
            out += snappy.decompress(batch.body[at + 4:at + 4 + size])
            at += 4 + size
        return out
    return batch.body


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def values(batch: Batch) -> list[tuple[int, bytes | None]]:
    """Return (offset, value) of each record."""
    data, at, rows = _plain(batch), 0, []
    for _ in range(batch.count):
        length, at = _varint(data, at)
        end = at + length
        _, at = _varint(data, at + 1)
        delta, at = _varint(data, at)
        key, at = _varint(data, at)
        size, at = _varint(data, at + max(0, key))
        rows.append((batch.base_offset + delta, None if size < 0 else data[at:at + size]))
        at = end
    return rows
