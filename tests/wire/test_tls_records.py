"""TLS: the number of records per response, file ranges complete in any of them, and requests in
arbitrary fragments.
"""

import socket
import ssl
import time

import pytest

from pylog.testing import Broker
from tests.wire import raw
from tests.wire.messages import decode
from tests.wire.raw import Connection
from tests.wire.talk import fetch, produce

RECORD_BYTES = 1 << 14


class Records:
    """A TLS socket that counts received records, with the interface that raw.Connection needs."""

    def __init__(self, port: int, authority: str):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=authority)
        self.plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.count = 0
        self._cut = b""
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._feed()
        self._flush()

    def sendall(self, data: bytes) -> None:
        self.tls.write(data)
        self._flush()

    def recv(self, most: int) -> bytes:
        while True:
            try:
                return self.tls.read(most)
            except ssl.SSLWantReadError:
                self._feed()

    def close(self) -> None:
        self.plain.close()

    def _flush(self) -> None:
        self.plain.sendall(self.outgoing.read())

    def _feed(self) -> None:
        data = self.plain.recv(1 << 16)
        assert data
        self.incoming.write(data)
        self._cut += data
        while len(self._cut) >= 5:
            length = 5 + int.from_bytes(self._cut[3:5], "big")
            if len(self._cut) < length:
                break
            self._cut = self._cut[length:]
            self.count += 1


class Encrypted(Connection):
    def __init__(self, broker: Broker):
        settings = broker.client_settings()
        self.socket = Records(broker.port, settings["ssl.truststore.certificates"])
        self.correlation_id = 0


@pytest.fixture(scope="module")
def broker():
    with Broker(tls=True) as running:
        yield running


@pytest.fixture
def connection(broker):
    with Encrypted(broker) as made:
        yield made


def stored(connection, broker, values: list[bytes], name: str) -> list[bytes]:
    """Create a topic with a batch of each value; return the batches as stored."""
    broker.create_topic(name)
    for value in values:
        row = produce(connection, name, raw.batch([raw.record(value=value)]))
        assert row["error_code"] == 0
    kept = fetch(connection, name)["records"]
    assert len(kept) > sum(map(len, values))
    return kept


def test_small_response_is_one_tls_record(broker, connection):
    kept = stored(connection, broker, [b"v"], "small")
    before = connection.socket.count
    assert fetch(connection, "small")["records"] == kept
    assert connection.socket.count == before + 1


@pytest.mark.parametrize("bytes_", [RECORD_BYTES - 200, RECORD_BYTES, 3 * RECORD_BYTES, 500_000])
def test_a_range_fills_the_records_that_its_head_began(broker, connection, bytes_, random_source):
    name = f"range-{bytes_}"
    kept = stored(connection, broker, [random_source.randbytes(bytes_)], name)
    before = connection.socket.count
    assert fetch(connection, name)["records"] == kept
    assert connection.socket.count == before + -(-(len(kept) + 100) // RECORD_BYTES)


def test_ranges_of_many_partitions_come_whole(broker, connection, random_source):
    broker.create_topic("many", partitions=40)
    batches = [raw.batch([raw.record(value=random_source.randbytes(size))])
               for size in random_source.sample(range(1, 40_000), 40)]
    for partition, batch in enumerate(batches):
        assert produce(connection, "many", batch, partition=partition)["error_code"] == 0
    body = raw.fetch_body(11, [("many", [(partition, 0, 1 << 20, -1) for partition in range(40)])])
    [topic] = decode(raw.FETCH, 11, connection.call(raw.FETCH, 11, body))["responses"]
    # Except for offset and epoch, which the broker sets, a batch is stored as it was sent.
    assert [row["records"][16:] for row in topic["partitions"]] == [one[16:] for one in batches]


def test_pipelined_requests_are_answered_in_order(broker, connection):
    kept = stored(connection, broker, [b"a" * 300, b"b"], "pipelined")
    asked = raw.frame(raw.header(raw.FETCH, 11, 9) + raw.fetch_body(
        11, [("pipelined", [(0, 0, 1 << 20, -1)])]))
    connection.send(50 * asked)
    for _ in range(50):
        assert kept in connection.answer(raw.FETCH, 11, 9)


@pytest.mark.parametrize("bytes_", [33_000, 53_000, 54_000, 75_000, 200_000, 900_000])
def test_large_request_is_reassembled_from_any_chunks(
        broker, connection, bytes_, random_source):
    name = f"pieces-{bytes_}"
    broker.create_topic(name)
    ends = connection.socket

    def send(data: bytes) -> None:
        while data:
            taken = random_source.choice((1000, 1 << 14, 40_000))
            ends.tls.write(data[:taken])
            data = data[taken:]
        encrypted = ends.outgoing.read()
        while encrypted:
            taken = random_source.choice((3, 5000, 20_000, 150_000))
            ends.plain.sendall(encrypted[:taken])
            encrypted = encrypted[taken:]
            time.sleep(random_source.choice((0, 0.001)))

    ends.sendall = send
    for _ in range(3):
        value = random_source.randbytes(bytes_)
        assert produce(connection, name, raw.batch([raw.record(value=value)]))["error_code"] == 0
        assert produce(connection, name, raw.batch([raw.record(value=b"v")]))["error_code"] == 0
    assert value in fetch(connection, name)["records"]
