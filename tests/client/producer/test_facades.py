"""The blocking and the asyncio producer: calls to the core, and the time that a record waits for
memory, on a clock that advances while waiting.
"""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from pylog.client.errors import BufferFullError, KafkaTimeoutError, LostRecords
from pylog.client.producer import aio_producer, producer
from pylog.client.producer.delivery import Delivery
from pylog.client.types import TopicPartition

GIVEN = "t", b"v", None, 3, None, (), None


class Core:
    """A Producing. puts: results of attempts to append a record before it succeeds. lost: records
    that failed.
    """

    def __init__(self):
        self.heard, self.puts, self.lost, self.forked, self.block_s = [], [], 0, False, 60.0
        self.now_s, self.wait_s, self.started = 50.0, 4.0, True
        self.delivery = Delivery.__new__(Delivery)
        self.cluster = SimpleNamespace(metadata=SimpleNamespace(partition_count=lambda topic: 2))

    def __getattr__(self, name):
        async def call(*given):
            self.heard.append((name, *given))
        return call

    def prepared(self, *given):
        assert given == GIVEN
        return given

    def put(self, *given):
        assert given == GIVEN
        return self.puts.pop(0) if self.puts else self.delivery

    def check(self):
        self.heard.append(("check",))
        return 7

    def check_same(self, transaction):
        self.heard.append(("check_same", transaction))

    async def wait_for(self, *given):
        self.heard.append(("wait_for", *given))
        self.now_s += self.wait_s

    async def flush(self, timeout):
        self.heard.append(("flush", timeout))
        return self.lost

    def needs_transactions(self):
        return SimpleNamespace(init=self.init, begin=lambda: self.heard.append(("begin",)))


class Plain:
    def __init__(self, monkeypatch):
        self.core = Core()
        monkeypatch.setattr(producer, "time", SimpleNamespace(monotonic=lambda: self.core.now_s))
        self.made = producer.Producer.__new__(producer.Producer)
        self.made._core = self.core
        self.made._driver = SimpleNamespace(
            run=asyncio.run, close_client=asyncio.run, thread=None)

    def call(self, name, *given, **more):
        return getattr(self.made, name)(*given, **more)

    def send(self):
        return self.made._send_slowly(*GIVEN)


class Aio(Plain):
    def __init__(self, monkeypatch):
        self.core = Core()
        monkeypatch.setattr(aio_producer, "time",
                            SimpleNamespace(monotonic=lambda: self.core.now_s))
        self.made = aio_producer.Producer.__new__(aio_producer.Producer)
        self.made._unstarted = self.core

    def call(self, name, *given, **more):
        found = getattr(self.made, name)(*given, **more)
        return asyncio.run(found) if asyncio.iscoroutine(found) else found

    def send(self):
        topic, value, key, partition, timestamp, headers, on_delivery = GIVEN
        return self.call("send", topic, value, key, partition=partition, timestamp=timestamp,
                         headers=headers, on_delivery=on_delivery)


@pytest.fixture(params=[Plain, Aio])
def face(request, monkeypatch):
    return request.param(monkeypatch)


@pytest.fixture
def plain(monkeypatch):
    return Plain(monkeypatch)


# Records.

def test_record_with_buffer_space_does_not_wait(face):
    assert face.send() is face.core.delivery and face.core.heard == [("check",)]


def test_record_waits_for_metadata_and_memory_within_one_timeout(face):
    face.core.puts = ["metadata", "memory", "memory"]
    assert face.send() is face.core.delivery
    assert face.core.heard == [
        ("check",), ("wait_for", "metadata", "t", 3, 60.0),
        ("check_same", 7), ("wait_for", "memory", "t", 3, 56.0),
        ("check_same", 7), ("wait_for", "memory", "t", 3, 52.0), ("check_same", 7)]


def test_remaining_time_is_never_negative(face):
    face.core.puts, face.core.wait_s = ["metadata", "memory"], 99.0
    face.send()
    assert face.core.heard[-2] == ("wait_for", "memory", "t", 3, 0.0)


def test_callback_on_the_loop_thread_does_not_wait(plain):
    plain.core.puts = ["memory"]
    plain.made._driver.thread = threading.current_thread()
    with pytest.raises(BufferFullError, match="a callback cannot wait for memory"):
        plain.send()
    assert plain.core.heard == [("check",)]


# Flush and close.

def test_flush_returns_lost_records_and_raises_on_request(face):
    assert face.call("flush") == 0 and face.call("flush", 2, check=True) == 0
    face.core.lost = 3
    assert face.call("flush", 5) == 3
    with pytest.raises(LostRecords):
        face.call("flush", check=True)
    assert face.core.heard == [("flush", None), ("flush", 2), ("flush", 5), ("flush", None)]


def test_the_partitions_of_a_topic_are_awaited(face):
    assert face.call("partitions_for", "t") == [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert face.core.heard == [("wait_for", "metadata", "t", None, 60.0)]


def test_pending_records_are_delivered_at_block_end_unless_an_error_occurred(face):
    face.call("close")
    face.call("close", 2)
    name = "__aexit__" if isinstance(face, Aio) else "__exit__"
    face.call(name, None, None, None)
    face.call(name, ValueError, ValueError(), None)
    assert face.core.heard == [("close", producer.CLOSE_S), ("close", 2),
                               ("close", producer.CLOSE_S), ("close", 0)]


def test_forked_child_does_not_use_its_parents_connections(plain):
    plain.core.forked = True
    plain.call("close")
    assert plain.core.heard == []


# Transactions.

@pytest.mark.parametrize(("name", "given", "asked"), [
    ("init_transactions", (), ("init",)), ("begin_transaction", (), ("begin",)),
    ("send_offsets_to_transaction", ({}, "g"), ("send_offsets", {}, "g")),
    ("commit_transaction", (), ("end_transaction", True)),
    ("abort_transaction", (), ("end_transaction", False))])
def test_a_call_of_a_transaction_is_the_cores(face, name, given, asked):
    face.call(name, *given)
    assert face.core.heard == [asked]


@pytest.mark.parametrize(("name", "attribute"), [
    ("init_transactions", "init"), ("commit_transaction", "end_transaction"),
    ("abort_transaction", "end_transaction")])
def test_close_timeout_is_reported(plain, name, attribute):
    async def hangs(*_):
        await asyncio.get_running_loop().create_future()

    setattr(plain.core, attribute, hangs)
    with pytest.raises(KafkaTimeoutError, match="^not done within 0.001 s$"):
        plain.call(name, 0.001)


def test_timeout_inside_close_is_raised_unchanged(plain):
    late = KafkaTimeoutError("within")

    async def fails(*_):
        raise late

    plain.core.end_transaction = fails
    with pytest.raises(KafkaTimeoutError) as found:
        plain.call("commit_transaction", 5)
    assert found.value is late
