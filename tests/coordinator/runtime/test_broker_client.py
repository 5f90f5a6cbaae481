"""Markers and queries to other brokers: targets and timeouts."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.config import Settings
from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.runtime.transactional_batches import Marker
from pylog.peer.errors import PeerError
from pylog.protocol import codec, messages

US = 1
LEADERS = {("a", 0): 1, ("a", 1): 2, ("b", 0): 3, ("b", 1): -1}
MARKER = Marker(7, 3, 5, True, 2)


class Here:
    async def write(self, marker, partitions):
        return dict.fromkeys(partitions, 0)


class Other:
    """A peer that responds like its broker; every message goes through the codec."""

    failure = None

    def __init__(self, error=0):
        self.error, self.asked = error, []

    async def call(self, message, version, timeout_s):
        key = {"WriteTxnMarkersRequest": 27, "AddPartitionsToTxnRequest": 24, "ProduceRequest": 0}[
            type(message).__qualname__]
        self.asked.append(codec.decode_request(
            key, version, codec.encode_request(key, version, message)))
        if self.error == "silent":
            raise PeerError("no answer")
        if key == 27:
            new = messages.WriteTxnMarkersResponse
            return new(markers=[new.WritableTxnMarkerResult(producer_id=row.producer_id, topics=[
                new.WritableTxnMarkerTopicResult(name=topic.name, partitions=[
                    new.WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=self.error)
                    for index in topic.partition_indexes]) for topic in row.topics])
                for row in message.markers])
        return messages.AddPartitionsToTxnResponse(error_code=self.error)


def brokers_of(**peers):
    node = SimpleNamespace(node_id=US, settings={}, image=SimpleNamespace(
        brokers={}, partition=lambda topic, index: SimpleNamespace(leader=LEADERS[topic, index])))
    made = Brokers(node, Here())
    made._peers = {int(name[1:]): peer for name, peer in peers.items()}
    return made


def test_each_leader_gets_the_markers_of_its_partitions():
    second, third = Other(), Other(6)
    found = asyncio.run(brokers_of(_2=second, _3=third).write(MARKER, tuple(LEADERS)))
    assert found == {("a", 0): 0, ("a", 1): 0, ("b", 0): 6, ("b", 1): 5}
    row = second.asked[0].markers[0]
    assert (row.producer_id, row.producer_epoch, row.coordinator_epoch, row.transaction_result,
            row.transaction_version) == (7, 3, 5, True, 2)
    assert [(topic.name, topic.partition_indexes) for topic in row.topics] == [("a", [1])]


def test_unresponsive_broker_is_retried_later():
    found = asyncio.run(brokers_of(_2=Other("silent")).write(MARKER, (("a", 1),)))
    assert found == {("a", 1): 13}


def test_connection_failure_is_logged_once_until_the_broker_responds(caplog):
    async def scene():
        second = Other("silent")
        brokers = brokers_of(_2=second, _3=Other("silent"))
        for error in ("silent", "silent", 0, "silent"):
            second.error = error
            await brokers.write(MARKER, (("a", 1),))
        await brokers.query_coordinator(3, "id", 7, 3, [("b", 0)], True)
    asyncio.run(scene())
    assert [(record.broker, record.reason) for record in caplog.records] == [
        (2, "no answer"), (2, "no answer"), (3, "no answer")]


def test_a_batch_that_a_leader_does_not_answer_to_fails_with_the_reason():
    topic = SimpleNamespace(name="a", partitions=[None, SimpleNamespace(leader=2)])
    with pytest.raises(PeerError, match="^no answer$"):
        asyncio.run(brokers_of(_2=Other("silent")).append(topic, 1, b""))


class Hung(Other):
    """A peer that accepts a request and responds when the test requests it."""

    def __init__(self):
        super().__init__()
        self.goes_on, self.is_closed = asyncio.Event(), False

    async def call(self, message, version, timeout_s):
        self.asked.append(message)
        await self.goes_on.wait()
        return await super().call(message, version, timeout_s)

    def close(self):
        self.is_closed = True


def test_fenced_broker_is_no_longer_awaited():
    async def scene():
        hung = Hung()
        brokers = brokers_of(_2=hung)
        known = brokers._node.image.brokers
        known[2] = SimpleNamespace(epoch=5, fenced=False)
        writing = asyncio.create_task(brokers.write(MARKER, (("a", 1),)))
        while not hung.asked:
            await asyncio.sleep(0)
        known[2] = SimpleNamespace(epoch=5, fenced=True)
        async with asyncio.timeout(20):
            assert await writing == {("a", 1): 13}
        assert hung.is_closed and not brokers._peers
    asyncio.run(scene())


def test_hanging_leader_does_not_delay_markers_for_others():
    async def scene():
        hung, third = Hung(), Other()
        writing = asyncio.create_task(brokers_of(_2=hung, _3=third).write(
            MARKER, (("a", 1), ("b", 0))))
        async with asyncio.timeout(20):
            while not third.asked:
                await asyncio.sleep(0.01)
        assert not writing.done()
        hung.goes_on.set()
        async with asyncio.timeout(20):
            assert await writing == {("a", 1): 0, ("b", 0): 0}
    asyncio.run(scene())


def test_unknown_broker_is_retried_later():
    brokers = brokers_of()
    brokers._node.settings = Settings({
        "listeners": "IN://:9092", "inter.broker.listener.name": "IN",
        "listener.security.protocol.map": "IN:PLAINTEXT"})
    assert asyncio.run(brokers.write(MARKER, (("a", 1),))) == {("a", 1): 13}


def test_remote_coordinators_error_is_not_reported_as_the_clients():
    other = Other(31)
    found = asyncio.run(brokers_of(_2=other).query_coordinator(2, "id", 7, 3, [("a", 1)], True))
    assert found == {("a", 1): 48}
    asked, = other.asked[0].transactions
    assert (asked.transactional_id, asked.verify_only) == ("id", True)
