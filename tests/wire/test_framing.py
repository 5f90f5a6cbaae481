"""Frames and headers that no client should send, one test each.

The expected outcomes are those of Apache Kafka 4.4 unless a row states a difference.
"""

import os
import socket
import struct
import threading
import time

import pytest

from tests.fixtures.brokers import Brokerd, answers
from tests.wire import raw
from tests.wire.messages import ask, decode, encode
from tests.wire.raw import Closed, Connection, frame, header
from tests.wire.talk import create_topic, unique

CLOSE, SERVED, WAIT, FALLBACK, BAD_SOFTWARE = "close", "served", "wait", "fallback", "error 42"
ANY_OF_BOTH = (CLOSE, SERVED)
MAX_REQUEST = 104857600
VALID = header(raw.METADATA, 1, 7) + struct.pack(">i", 0)
NO_TAGS = b"\0"


def _tls_hello() -> bytes:
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0"
    hello = b"\x01" + struct.pack(">I", len(body))[1:] + body
    return b"\x16\x03\x01" + struct.pack(">H", len(hello)) + hello


def _bare(key: int, version: int, tail: bytes = b"") -> bytes:
    """Return a header v1 for any version, and a tail."""
    return header(key, version, 7, flexible=False) + tail


def _client_id(length: int, content: bytes) -> bytes:
    return struct.pack(">hhih", raw.METADATA, 1, 7, length) + content + struct.pack(">i", 0)


def _tagged(count_or_tags: bytes, key: int = raw.METADATA, version: int = 9) -> bytes:
    """Return a flexible header whose tagged fields are the given bytes, and a Metadata v9 body."""
    return (header(key, version, 7, flexible=False) + count_or_tags
            + raw.array([], True) + b"\1\0\0" + NO_TAGS)


METADATA_V9 = raw.array([], True) + b"\1\0\0"
TWO_TAGS = b"\x02" + b"\x50\x03abc" + b"\xd1\x86\x03\x00"
API_V3 = (header(raw.API_VERSIONS, 3, 7) + raw.compact_string("bad name!{}")
          + raw.compact_string("1") + NO_TAGS)

# id, bytes on a new connection, outcome in Kafka, outcome in ours if it may differ.
ROWS = [
    ("1-length-minus-1", struct.pack(">i", -1), CLOSE, None),
    ("2-length-int-min", struct.pack(">i", -2**31), CLOSE, None),
    ("3-length-int-max", struct.pack(">i", 2**31 - 1), CLOSE, None),
    ("4-length-max-plus-1", struct.pack(">i", MAX_REQUEST + 1), CLOSE, None),
    ("5-length-max-no-body", struct.pack(">i", MAX_REQUEST), WAIT, None),
    ("7a-length-0", struct.pack(">i", 0), CLOSE, None),
    ("7b-length-0-before-a-valid-frame", struct.pack(">i", 0) + frame(VALID), CLOSE, None),
    ("8-frame-of-4-bytes", frame(bytes(4)), CLOSE, None),
    ("9-header-without-client-id", frame(struct.pack(">hhi", 3, 1, 7)), CLOSE, None),
    ("10-http-get", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", CLOSE, None),
    ("11-tls-hello", _tls_hello(), CLOSE, None),
    ("12a-bytes-of-0xff", b"\xff" * 64, CLOSE, None),
    ("12b-text-with-a-legal-length", b"\0\0\0\x20" + b"x" * 32, CLOSE, None),
    ("13-api-key-9999", frame(_bare(9999, 0)), CLOSE, None),
    ("14-api-key-minus-1", frame(_bare(-1, 0)), CLOSE, None),
    ("15-metadata-v99", frame(_bare(raw.METADATA, 99, NO_TAGS + METADATA_V9)), CLOSE, None),
    ("16-metadata-v-minus-1", frame(_bare(raw.METADATA, -1, struct.pack(">i", 0))), CLOSE, None),
    ("17a-apiversions-v6-flexible", frame(_bare(raw.API_VERSIONS, 6, b"\0\2a\2b\0")),
     FALLBACK, None),
    ("17b-apiversions-v99-flexible", frame(_bare(raw.API_VERSIONS, 99, b"\0\2a\2b\0")),
     FALLBACK, None),
    ("18-apiversions-v99-plain-header", frame(_bare(raw.API_VERSIONS, 99)), CLOSE, None),
    ("19-apiversions-v-minus-1", frame(_bare(raw.API_VERSIONS, -1)), FALLBACK, (FALLBACK, CLOSE)),
    ("20-software-name-illegal", frame(API_V3), BAD_SOFTWARE, None),
    ("21-produce-v0", frame(_bare(raw.PRODUCE, 0, struct.pack(">hii", 1, 100, 0))), CLOSE, None),
    ("22-fetch-v0", frame(_bare(raw.FETCH, 0, struct.pack(">iiii", -1, 0, 0, 0))), CLOSE, None),
    ("23-client-id-longer-than-frame", frame(_client_id(32767, b"")), CLOSE, None),
    ("24-client-id-length-minus-2", frame(_client_id(-2, b"")), SERVED, ANY_OF_BOTH),
    ("25-client-id-invalid-utf8", frame(_client_id(4, b"\xff\xfe\xc0\x80")), SERVED, ANY_OF_BOTH),
    ("26-client-id-null", frame(_client_id(-1, b"")), SERVED, None),
    ("27-trailing-bytes", frame(VALID + b"trailing"), SERVED, None),
    ("28-array-count-int-max", frame(_bare(raw.METADATA, 1, struct.pack(">i", 2**31 - 1))),
     CLOSE, None),
    ("28b-produce-array-count-int-max",
     frame(_bare(raw.PRODUCE, 8, struct.pack(">hhii", -1, 1, 100, 2**31 - 1))), CLOSE, None),
    ("28c-fetch-array-count-int-max", frame(_bare(
        raw.FETCH, 11, struct.pack(">iiiibiii", -1, 0, 0, 1, 0, 0, -1, 2**31 - 1))), CLOSE, None),
    ("29-string-length-past-the-end", frame(_bare(
        raw.METADATA, 1, struct.pack(">ih", 1, 32767) + b"abc")), CLOSE, None),
    ("30-compact-count-2-32", frame(
        header(raw.METADATA, 9, 7) + raw.uvarint(2**32)), CLOSE, None),
    ("31-varint-of-10-bytes", frame(header(raw.METADATA, 9, 7) + b"\xff" * 10), CLOSE, None),
    ("32-a-million-tagged-fields", frame(_tagged(raw.uvarint(1000000))), CLOSE, None),
    ("33-tagged-field-beyond-the-frame", frame(_tagged(b"\1\5" + raw.uvarint(60000))),
     CLOSE, None),
    ("34a-unknown-tags-in-the-header", frame(_tagged(TWO_TAGS)), SERVED, None),
    ("34b-unknown-tags-in-the-body", frame(header(raw.METADATA, 9, 7) + METADATA_V9 + TWO_TAGS),
     SERVED, None),
    ("36-null-topic-name", frame(_bare(raw.METADATA, 4, struct.pack(">ih?", 1, -1, False))),
     CLOSE, None),
    ("37-leader-and-isr", frame(_bare(4, 0, bytes(64))), CLOSE, None),
    ("38-controlled-shutdown", frame(_bare(7, 0, bytes(64))), CLOSE, None),
    ("39-vote", frame(_bare(52, 0, bytes(64))), CLOSE, None),
    ("40-envelope", frame(_bare(58, 0, bytes(64))), CLOSE, None),
    ("41-broker-registration", frame(_bare(62, 0, bytes(64))), CLOSE, None),
]


def _outcome(port: int, payload: bytes) -> str:
    """Return the broker's reaction to `payload`: closed, silent, or a response with its content."""
    with Connection(port) as connection:
        connection.send(payload)
        if connection.quiet(0.5):
            return WAIT
        try:
            body = connection.receive()
        except Closed:
            return CLOSE
        assert struct.unpack_from(">i", body)[0] == 7
        if struct.unpack_from(">h", payload, 4)[0] != raw.API_VERSIONS:
            return SERVED
        error, count = struct.unpack_from(">hi", body, 4)
        if error == 35:
            assert len(body) == 10 + 6 * count, "not the v0 format"
            assert struct.unpack_from(">hhh", body, 10) == (18, 0, 5) and count == 1
            assert ask(connection, raw.API_VERSIONS, 0)["error_code"] == 0, "not usable after"
            return FALLBACK
        return f"error {error}" if error else SERVED


@pytest.mark.parametrize("payload, at_kafka, at_ours", [row[1:] for row in ROWS],
                         ids=[row[0] for row in ROWS])
def test_malformed_frame_is_closed_or_answered_as_by_kafka(target, payload, at_kafka, at_ours):
    allowed = at_kafka
    if target.name == "pylog" and at_ours is not None:
        allowed = at_ours
    outcome = _outcome(target.port, payload)
    assert outcome in allowed if isinstance(allowed, tuple) else outcome == allowed
    assert target.alive() and answers(target.port)


def test_6_twenty_declared_100_mib_frames_cost_under_a_mib_each(target):
    if target.name == "kafka":
        pytest.skip("Kafka allocates what is declared and stops answering")
    before = target.rss_bytes()
    connections = [Connection(target.port) for _ in range(20)]
    try:
        for connection in connections:
            connection.send(struct.pack(">i", MAX_REQUEST) + b"begin")
        time.sleep(0.2)
        assert answers(target.port)
        assert target.rss_bytes() - before < 20 << 20
    finally:
        for connection in connections:
            connection.close()


def test_35_a_negative_correlation_id_is_echoed(target):
    with Connection(target.port) as connection:
        connection.send(frame(header(raw.METADATA, 1, -77) + struct.pack(">i", 0)))
        assert struct.unpack_from(">i", connection.receive())[0] == -77


def test_42_a_request_sent_one_byte_at_a_time_is_served(target):
    with Connection(target.port) as connection:
        for byte in frame(VALID):
            connection.send(bytes([byte]))
            time.sleep(0.002)
        assert struct.unpack_from(">i", connection.receive())[0] == 7


def test_43_two_hundred_pipelined_requests_are_answered_in_order(target):
    topic = unique("pipelined")
    create_topic(target.port, topic)
    with Connection(target.port) as connection:
        requests = []
        for number in range(200):
            if number % 3 == 0:
                requests.append(header(raw.METADATA, 1, number) + struct.pack(">i", 0))
            elif number % 3 == 1:
                body = raw.produce_body(8, topic, [(0, raw.batch())])
                requests.append(header(raw.PRODUCE, 8, number) + body)
            else:
                body = raw.fetch_body(11, [(topic, [(0, 0, 1000, -1)])])
                requests.append(header(raw.FETCH, 11, number) + body)
        connection.send(b"".join(frame(request) for request in requests))
        order = [struct.unpack_from(">i", connection.receive())[0] for _ in range(200)]
        assert order == list(range(200))


def test_44_a_connection_closed_in_the_middle_of_a_frame_does_no_harm(target):
    for cut in (1, 3, 4, 5, 10, len(frame(VALID)) - 1):
        with Connection(target.port) as connection:
            connection.send(frame(VALID)[:cut])
    assert target.alive() and answers(target.port)


def test_45_a_reset_right_after_a_request_does_no_harm(target):
    for _ in range(20):
        with Connection(target.port) as connection:
            connection.send(frame(VALID) * 5)
            connection.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert target.alive() and answers(target.port)


def test_46_slow_partial_frame_keeps_its_connection(target):
    with Connection(target.port) as connection:
        for byte in frame(VALID)[:12]:
            connection.send(bytes([byte]))
            time.sleep(0.1)
        assert connection.quiet(0.1)
        connection.send(frame(VALID)[12:])
        assert struct.unpack_from(">i", connection.receive())[0] == 7


def test_47_connections_beyond_the_limit_per_address_are_closed(against, tmp_path):
    if against == "kafka":
        pytest.skip("needs a broker of its own")
    with Brokerd(tmp_path, {"max.connections.per.ip": 50}) as broker:
        connections = [Connection(broker.port) for _ in range(120)]
        time.sleep(0.3)
        open_count = 0
        for connection in connections:
            try:
                connection.send(frame(VALID))
                connection.receive()
                open_count += 1
            except (Closed, OSError):
                continue
        assert open_count == 50
        for connection in connections:
            connection.close()
        end_s = time.monotonic() + 5
        while time.monotonic() < end_s and not answers(broker.port):
            time.sleep(0.05)
        assert answers(broker.port) and broker.alarms() == []


def test_48_a_client_that_never_reads_costs_a_bounded_buffer(target):
    topic = unique("never-read")
    create_topic(target.port, topic, partitions=100)
    names = raw.array([raw.string(topic)] * 100)
    request = frame(header(raw.METADATA, 1, 7) + names)
    before = target.rss_bytes()
    with Connection(target.port) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.socket.setblocking(False)
        sent = 0
        end_s = time.monotonic() + 2
        pending = b""
        while sent < 3000 and time.monotonic() < end_s:
            pending = pending or request
            try:
                pending = pending[connection.socket.send(pending):]
                sent += not pending
            except BlockingIOError:
                time.sleep(0.01)
            except (BrokenPipeError, ConnectionResetError):
                break
        start_s = time.monotonic()
        assert answers(target.port), "a neighbour is not served"
        assert time.monotonic() - start_s < 8.0
        if target.name == "pylog":
            assert target.rss_bytes() - before < 64 << 20
    assert target.alive()


def test_a_fetch_reader_that_stalls_does_not_stall_its_neighbours(target):
    topic = unique("stalled")
    create_topic(target.port, topic)
    with Connection(target.port) as writer:
        block = raw.batch([raw.record(value=os.urandom(500000))])
        for _ in range(40):
            body = raw.produce_body(8, topic, [(0, block)], acks=1)
            assert decode(raw.PRODUCE, 8, writer.call(raw.PRODUCE, 8, body))
    before = target.rss_bytes()
    stalled = [Connection(target.port) for _ in range(10)]
    try:
        for connection in stalled:
            body = raw.fetch_body(11, [(topic, [(0, 0, 1 << 26, -1)])])
            connection.send(frame(header(raw.FETCH, 11, 1) + body) * 3)
        time.sleep(0.3)
        with Connection(target.port) as neighbour:
            slowest_s = 0.0
            for _ in range(50):
                start_s = time.monotonic()
                ask(neighbour, raw.METADATA, 1, topics=[])
                slowest_s = max(slowest_s, time.monotonic() - start_s)
        assert slowest_s < 8.0
        if target.name == "pylog":
            assert target.rss_bytes() - before < 96 << 20
    finally:
        for connection in stalled:
            connection.close()


def test_random_bytes_after_a_valid_header_never_harm_the_broker(target, random_source):
    generator = random_source
    neighbour = Connection(target.port)
    for _ in range(300):
        key, version = generator.choice([
            (0, 3), (0, 8), (0, 9), (0, 13), (1, 4), (1, 7), (1, 11), (1, 12), (1, 18), (2, 1),
            (2, 6), (2, 11), (3, 1), (3, 9), (3, 12), (18, 3), (19, 2), (19, 7), (20, 1), (20, 6),
            (22, 0), (22, 4), (23, 2), (23, 4), (60, 0), (75, 0)])
        body = generator.randbytes(generator.choice([0, 1, 2, 4, 8, 16, 40, 200]))
        with Connection(target.port) as connection:
            connection.send(frame(header(key, version, 7) + body))
    assert ask(neighbour, raw.METADATA, 1, topics=[])["topics"] == []
    neighbour.close()
    assert target.alive() and answers(target.port)


def test_valid_requests_with_flipped_bytes_never_harm_the_broker(target, random_source):
    generator = random_source
    topic = unique("flipped")
    create_topic(target.port, topic)
    batch = raw.batch([raw.record(value=b"x" * 50, headers=[(b"h", b"v")]) for _ in range(3)])
    seeds = [
        (0, 8, raw.produce_body(8, topic, [(0, batch)])),
        (0, 9, raw.produce_body(9, topic, [(0, batch)])),
        (1, 11, raw.fetch_body(11, [(topic, [(0, 0, 1000, -1)])])),
        (1, 12, raw.fetch_body(12, [(topic, [(0, 0, 1000, -1)])])),
        (3, 9, encode(3, 9, topics=[{"name": topic}])),
        (2, 6, encode(2, 6, replica_id=-1, topics=[
            {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}])),
    ]
    for _ in range(300):
        key, version, body = generator.choice(seeds)
        damaged = bytearray(body)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        with Connection(target.port) as connection:
            connection.send(frame(header(key, version, 7) + bytes(damaged)))
    assert target.alive() and answers(target.port)


def test_many_connections_opened_and_closed_leave_no_descriptor_behind(target):
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{target.pid}/fd"))

    answers(target.port)
    before = descriptors()

    def churn():
        for _ in range(100):
            with Connection(target.port) as connection:
                connection.send(frame(VALID))

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end_s = time.monotonic() + 5
    while descriptors() > before + 5 and time.monotonic() < end_s:
        time.sleep(0.05)
    assert descriptors() <= before + 5
