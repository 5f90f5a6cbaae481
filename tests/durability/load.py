"""Writers that record acknowledgements, and the check that no acknowledged record is lost.

A value contains its writer's number and its own, so that loss, duplication, disorder and foreign
bytes are all detected.
"""

import random
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from tests.wire import raw
from tests.wire.messages import ask, decode
from tests.wire.raw import Closed, Connection, batch, record
from tests.wire.records import batches, values

IN_FLIGHT_MAX = 5
RETRIABLE = {3, 5, 6, 7, 14, 19, 20}


@dataclass(frozen=True)
class Acked:
    first: int
    count: int
    base_offset: int
    time_ns: int


@dataclass
class _Sent:
    first: int
    count: int
    payload: bytes
    sequence: int


@dataclass
class Writer:
    """A thread that appends numbered records to one partition until it is stopped.

    With `idempotent`, unacknowledged batches of a lost connection are resent with the same
    sequence. Otherwise they are given up and may or may not be in the log.
    """

    number: int
    port: int
    topic: str
    partition: int
    idempotent: bool
    acks: int = -1
    codec: int = raw.NONE
    value_bytes: int = 100
    pause_s: float = 0.0
    acked: list[Acked] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.next_number = 0
        self.sequence = 0
        self.producer_id = -1
        self.waiting: deque[_Sent] = deque()
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self.random = random.Random(self.number)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "Writer":
        self.thread.start()
        return self

    def wait_acked(self, count: int, wait_s: float = 60.0) -> None:
        """Wait until `count` more records are acknowledged."""
        goal, end_s = self.acked_records + count, time.monotonic() + wait_s
        while self.acked_records < goal:
            assert self.thread.is_alive() and time.monotonic() < end_s, self.errors[-5:]
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop after all pending requests were answered or lost."""
        self.stopping.set()
        self.thread.join(30)
        assert not self.thread.is_alive(), "the writer hangs"
        if self.failure is not None:
            raise self.failure

    @property
    def acked_records(self) -> int:
        return sum(one.count for one in self.acked)

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    with Connection(self.port, wait_s=10) as connection:
                        self._session(connection)
                except (Closed, OSError):
                    time.sleep(0.01)
        except BaseException as failure:
            self.failure = failure

    def _session(self, connection: Connection) -> None:
        if self.idempotent and self.producer_id < 0:
            answer = ask(connection, raw.INIT_PRODUCER_ID, 4, transactional_id=None,
                         transaction_timeout=60000, producer_id=-1, producer_epoch=-1)
            if answer["error_code"]:
                return
            self.producer_id = answer["producer_id"]
        if not self.idempotent:
            self.waiting.clear()
        again = list(self.waiting)
        self.waiting.clear()
        for sent in again:
            self._send(connection, sent)
        while True:
            while len(self.waiting) < IN_FLIGHT_MAX and not self.stopping.is_set():
                self._send(connection, self._next())
            if not self.waiting:
                return
            self._receive(connection)
            if self.pause_s:
                time.sleep(self.pause_s)

    def _next(self) -> _Sent:
        count = self.random.randint(1, 20)
        rows = []
        for delta in range(count):
            head = struct.pack(">iq", self.number, self.next_number + delta)
            value = head + self.random.randbytes(self.value_bytes)
            rows.append(record(None, value, offset_delta=delta))
        producer = {"producer_id": self.producer_id, "producer_epoch": 0,
                    "base_sequence": self.sequence} if self.idempotent else {}
        sent = _Sent(self.next_number, count, batch(rows, codec=self.codec, **producer),
                     self.sequence)
        self.next_number += count
        self.sequence += count
        return sent

    def _send(self, connection: Connection, sent: _Sent) -> None:
        self.waiting.append(sent)
        body = raw.produce_body(8, self.topic, [(self.partition, sent.payload)], acks=self.acks)
        connection.correlation_id += 1
        connection.send(raw.frame(raw.header(0, 8, connection.correlation_id) + body))

    def _receive(self, connection: Connection) -> None:
        sent = self.waiting[0]
        expected = connection.correlation_id - len(self.waiting) + 1
        answer = decode(0, 8, connection.answer(0, 8, expected))
        now_ns = time.monotonic_ns()
        row = answer["responses"][0]["partition_responses"][0]
        if row["error_code"] == 0:
            self.waiting.popleft()
            self.acked.append(Acked(sent.first, sent.count, row["base_offset"], now_ns))
            return
        self.errors.append(row["error_code"])
        if not self.idempotent:
            # On a second connection, later numbers could overtake the requests pending on this one.
            self.waiting.popleft()
            time.sleep(0.01)
            return
        if row["error_code"] not in RETRIABLE:
            self.waiting.popleft()
        raise Closed


def read_all(port: int, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """Return every (offset, value) of a partition, with verified checksums."""
    rows: list[tuple[int, bytes]] = []
    offset = 0
    with Connection(port, wait_s=20) as connection:
        while True:
            body = raw.fetch_body(11, [(topic, [(partition, offset, 1 << 22, -1)])])
            answer = decode(1, 11, connection.call(1, 11, body))
            row = answer["responses"][0]["partitions"][0]
            assert row["error_code"] == 0, row["error_code"]
            got = list(batches(row["records"] or b""))
            if not got:
                assert offset == row["high_watermark"], (offset, row["high_watermark"])
                return rows
            for one in got:
                assert one.base_offset >= offset or not rows, (one.base_offset, offset)
                rows += values(one)
            offset = got[-1].last_offset + 1


def check(writer: Writer, rows: list[tuple[int, bytes]], until_ns: int | None = None) -> int:
    """Check that every acknowledged record (before `until_ns`) exists once and in order.

    Return their number.
    """
    assert [offset for offset, _ in rows] == list(range(len(rows))), "offsets are not dense"
    numbers = {}
    last = -1
    for offset, value in rows:
        owner, number = struct.unpack_from(">iq", value)
        assert owner == writer.number, f"foreign record at {offset}"
        assert len(value) == 12 + writer.value_bytes
        assert number > last, f"{number} after {last} at offset {offset}"
        if writer.idempotent:
            assert number == last + 1, f"{number} after {last} at offset {offset}"
        numbers[number] = offset
        last = number
    checked = 0
    for one in writer.acked:
        if until_ns is not None and one.time_ns > until_ns:
            continue
        for delta in range(one.count):
            found = numbers.get(one.first + delta)
            assert found == one.base_offset + delta, (
                f"record {one.first + delta}, acknowledged at {one.base_offset + delta}, "
                f"is at {found}; log ends at {len(rows)}")
        checked += one.count
    return checked
