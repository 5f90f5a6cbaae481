"""A Kafka client of bytes: sockets, frames, headers and record batches that can be damaged freely.

Independent of pylog's codecs and checksums, so that an error there does not hide itself here.
Source: Kafka's protocol guide (framing, headers, record batch v2), KIP-482 (flexible versions).
"""

import gzip
import select
import socket
import struct
import time
import zlib

import crc32c
import lz4.frame
import snappy
import zstandard

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 19, 20, 22
FLEXIBLE_FROM = {0: 9, 1: 12, 2: 6, 3: 9, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5,
                 16: 3, 18: 3, 19: 5, 20: 4, 21: 2, 22: 2, 23: 4, 32: 4, 33: 2, 34: 2, 35: 2,
                 24: 3, 25: 3, 26: 3, 27: 1, 28: 3, 61: 0, 65: 0, 66: 0,
                 37: 2, 42: 2, 43: 2, 44: 1, 47: 1 << 15, 48: 1, 49: 1, 50: 0, 60: 0, 75: 0}
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
TRANSACTIONAL, CONTROL = 0x10, 0x20
CLIENT_ID = b"raw"


class Closed(Exception):
    """The broker closed the connection."""


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Encode a zigzag varint, as inside records."""
    return uvarint((value << 1) ^ (value >> 63) if value < 0 else value << 1)


def string(value: bytes | str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    value = value.encode() if isinstance(value, str) else value
    return struct.pack(">h", len(value)) + value


def compact_string(value: bytes | str | None) -> bytes:
    if value is None:
        return b"\0"
    value = value.encode() if isinstance(value, str) else value
    return uvarint(len(value) + 1) + value


def array(items: list[bytes], flexible: bool = False) -> bytes:
    head = uvarint(len(items) + 1) if flexible else struct.pack(">i", len(items))
    return head + b"".join(items)


def header(key: int, version: int, correlation_id: int = 1, client_id=CLIENT_ID,
           flexible: bool | None = None) -> bytes:
    """Return a request header v1, or v2 if `flexible` (by default as the API's version requires).
    """
    if flexible is None:
        flexible = version >= FLEXIBLE_FROM.get(key, 0)
    return (struct.pack(">hhi", key, version, correlation_id) + string(client_id)
            + (b"\0" if flexible else b""))


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class Connection:
    """One TCP connection to a broker on loopback."""

    def __init__(self, port: int, wait_s: float = 10.0, host: str = "127.0.0.1"):
        self.socket = socket.create_connection((host, port), timeout=wait_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation_id = 0

    def send(self, payload: bytes) -> None:
        try:
            self.socket.sendall(payload)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def _take(self, count: int) -> bytes:
        chunks = []
        while count:
            try:
                chunk = self.socket.recv(min(count, 1 << 20))
            except (ConnectionResetError, BrokenPipeError):
                raise Closed from None
            if not chunk:
                raise Closed
            chunks.append(chunk)
            count -= len(chunk)
        return b"".join(chunks)

    def receive(self) -> bytes:
        """Return the next frame without its length. Raises Closed, or TimeoutError."""
        return self._take(struct.unpack(">i", self._take(4))[0])

    def call(self, key: int, version: int, body: bytes, client_id=CLIENT_ID) -> bytes:
        """Send one request, return the response body."""
        self.correlation_id += 1
        self.send(frame(header(key, version, self.correlation_id, client_id) + body))
        return self.answer(key, version)

    def answer(self, key: int, version: int, correlation_id: int | None = None) -> bytes:
        payload = self.receive()
        expected = self.correlation_id if correlation_id is None else correlation_id
        got = struct.unpack_from(">i", payload)[0]
        assert got == expected, (got, expected)
        flexible = version >= FLEXIBLE_FROM.get(key, 0) and key != API_VERSIONS
        assert not flexible or payload[4] == 0, "tagged fields in a response header"
        return payload[5 if flexible else 4:]

    def quiet(self, wait_s: float) -> bool:
        """Return True if nothing, not even the end of the stream, arrives within `wait_s`."""
        return not select.select([self.socket], [], [], wait_s)[0]

    def closed(self, wait_s: float = 5.0) -> bool:
        """Return True if the broker closes within `wait_s`; earlier data is discarded."""
        end_s = time.monotonic() + wait_s
        while time.monotonic() < end_s:
            self.socket.settimeout(max(0.01, end_s - time.monotonic()))
            try:
                if not self.socket.recv(1 << 16):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True
        return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def record(key=b"k", value=b"v", headers=(), offset_delta: int = 0, timestamp_delta: int = 0, *,
           attributes: int = 0, length: int | None = None, header_count: int | None = None,
           tail: bytes = b"") -> bytes:
    """Return one record; `length` and `header_count` override the correct values, `tail` counts as
    its bytes.
    """
    body = struct.pack(">b", attributes) + varint(timestamp_delta) + varint(offset_delta)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(len(headers) if header_count is None else header_count)
    for name, content in headers:
        body += varint(-1) if name is None else varint(len(name)) + name
        body += varint(-1) if content is None else varint(len(content)) + content
    body += tail
    return varint(len(body) if length is None else length) + body


def xerial(raw: bytes, block_bytes: int = 32 * 1024) -> bytes:
    """Compress with snappy-java's framing, as Kafka does."""
    out = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for at in range(0, len(raw), block_bytes):
        block = snappy.compress(raw[at:at + block_bytes])
        out += struct.pack(">i", len(block)) + block
    return out


def compress(codec: int, raw: bytes) -> bytes:
    if codec == GZIP:
        return gzip.compress(raw, 1, mtime=0)
    if codec == SNAPPY:
        return xerial(raw)
    if codec == LZ4:
        return lz4.frame.compress(raw, store_size=False, block_linked=False)
    if codec == ZSTD:
        return zstandard.ZstdCompressor().compress(raw)
    return raw


def batch(records: list[bytes] | None = None, *, codec: int = NONE, base_offset: int = 0,
          leader_epoch: int = -1, magic: int = 2, attributes: int = 0,
          last_offset_delta: int | None = None, base_timestamp: int | None = None,
          max_timestamp: int | None = None, producer_id: int = -1, producer_epoch: int = -1,
          base_sequence: int = -1, count: int | None = None, crc_xor: int = 0,
          length: int | None = None, payload: bytes | None = None) -> bytes:
    """Return a record batch of format 2. Every field is correct unless it is passed.

    records: results of record(). payload: the bytes after the header, instead of records.
    """
    records = [record()] if records is None else records
    base_timestamp = int(time.time() * 1000) if base_timestamp is None else base_timestamp
    body = compress(codec, b"".join(records)) if payload is None else payload
    checked = struct.pack(
        ">hiqqqhii", attributes | codec,
        len(records) - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp, base_timestamp if max_timestamp is None else max_timestamp,
        producer_id, producer_epoch, base_sequence, len(records) if count is None else count,
    ) + body
    crc = crc32c.crc32c(checked) ^ crc_xor
    rest = struct.pack(">ibI", leader_epoch, magic, crc) + checked
    return struct.pack(">qi", base_offset, len(rest) if length is None else length) + rest


def old_message(magic: int, value: bytes = b"v") -> bytes:
    """Return a message of format 0 or 1, which Kafka 4 rejects."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 1) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(body)) + body


def produce_body(version: int, topic, partitions: list[tuple[int, bytes | None]], *,
                 acks: int = -1, timeout_ms: int = 5000, transactional_id=None) -> bytes:
    """Return the body of a Produce request; `topic` is a name, or 16 bytes of id from version 13.
    """
    flexible = version >= 9
    tags = b"\0" if flexible else b""
    text = compact_string if flexible else string
    rows = []
    for index, records in partitions:
        if records is None:
            data = b"\0" if flexible else struct.pack(">i", -1)
        else:
            data = uvarint(len(records) + 1) if flexible else struct.pack(">i", len(records))
            data += records
        rows.append(struct.pack(">i", index) + data + tags)
    name = topic if version >= 13 else text(topic)
    return (text(transactional_id) + struct.pack(">hi", acks, timeout_ms)
            + array([name + array(rows, flexible) + tags], flexible) + tags)


def fetch_body(version: int, topics: list[tuple[object, list[tuple]]], *, replica_id: int = -1,
               wait_ms_max: int = 0, bytes_min: int = 0, bytes_max: int = 1 << 26,
               isolation: int = 0, session_id: int = 0, session_epoch: int = -1) -> bytes:
    """Return the body of a Fetch request of versions 7 to 14.

    topics: (name, or id from 13, [(partition, offset, partition_bytes_max, leader_epoch)]).
    """
    assert 7 <= version <= 14, version
    flexible = version >= 12
    tags = b"\0" if flexible else b""
    body = struct.pack(">iiiibii", replica_id, wait_ms_max, bytes_min, bytes_max, isolation,
                       session_id, session_epoch)
    rows = []
    for topic, partitions in topics:
        cells = []
        for partition, offset, partition_bytes_max, leader_epoch in partitions:
            cell = struct.pack(">i", partition)
            cell += struct.pack(">i", leader_epoch) if version >= 9 else b""
            cell += struct.pack(">q", offset)
            cell += struct.pack(">i", -1) if version >= 12 else b""
            cells.append(cell + struct.pack(">qi", -1, partition_bytes_max) + tags)
        name = topic if version >= 13 else compact_string(topic) if flexible else string(topic)
        rows.append(name + array(cells, flexible) + tags)
    body += array(rows, flexible) + array([], flexible)
    if version >= 11:
        body += compact_string(b"") if flexible else string(b"")
    return body + tags
