"""A brokerd that joins the cluster of a running Kafka, and queries to both by clients."""

import asyncio
import re
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pylog.peer.connection import Peer
from pylog.protocol import messages
from tests.fixtures.brokers import Brokerd

SETTINGS = {
    "process.roles": "broker", "controller.listener.names": "CONTROLLER",
    "broker.heartbeat.interval.ms": 300, "replica.lag.time.max.ms": 3000,
    "metrics.listener": "127.0.0.1:0",
}
WAIT_S = 30.0


def member(root, kafka, node_id: int, settings: dict | None = None) -> Brokerd:
    """A brokerd below `root`, not started, whose controller is a tests.fixtures.brokers.Kafka's."""
    assert not kafka.is_shared
    voters = re.search(r"controller.quorum.voters=(\S+)",
                       kafka.broker.properties.read_text())[1]
    return Brokerd(root, {**SETTINGS, "node.id": node_id, "controller.quorum.voters": voters,
                          **(settings or {})})


def admin(broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def create(broker, name: str, replicas: list[list[int]], config: dict | None = None) -> None:
    """Create a topic whose partitions have these replicas, through this broker."""
    asked = admin(broker)
    for future in asked.create_topics([NewTopic(
            name, num_partitions=len(replicas), replica_assignment=replicas,
            config=config or {})]).values():
        future.result(WAIT_S)


def delete(broker, name: str) -> None:
    asked = admin(broker)
    for future in asked.delete_topics([name]).values():
        future.result(WAIT_S)


def until(look, wanted, wait_s: float = WAIT_S):
    """Return look() when it equals `wanted`, or its last result."""
    end_s = time.monotonic() + wait_s
    while (found := look()) != wanted and time.monotonic() < end_s:
        time.sleep(0.05)
    return found


def brokers(broker) -> list[int]:
    return sorted(admin(broker).list_topics(timeout=10).brokers)


def states(broker, name: str) -> list[tuple[int, list[int]]]:
    """Return (leader, sorted ISR) of each partition, by this broker's metadata."""
    found = admin(broker).list_topics(name, timeout=10).topics[name].partitions
    return [(found[index].leader, sorted(found[index].isrs)) for index in sorted(found)]


def settled(broker, name: str, leader: int, isr: list[int], wait_s: float = 60.0) -> None:
    """Wait until a broker returns this state for the only partition of a topic."""
    wanted = [(leader, isr)]
    assert until(lambda: states(broker, name), wanted, wait_s) == wanted


def same(one, other, name: str) -> None:
    """Wait until two replicas of a partition have the same bytes."""
    assert until(lambda: segments(one, name) == segments(other, name), True)


def produce(broker, name: str, values, partition: int = 0, **settings) -> None:
    """Send values with acks=all; every one must be acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0,
                         "message.timeout.ms": 1000 * WAIT_S, **settings})
    errors = []
    for value in values:
        producer.produce(name, value, partition=partition,
                         on_delivery=lambda error, _: error and errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors == []


class Sending:
    """One idempotent producer that sends to one partition until the block's end, when everything is
    acknowledged. sent: the values, in order.
    """

    def __init__(self, broker, name: str):
        self.sent: list[bytes] = []
        self._errors: list = []
        self._name = name
        self._thread = threading.Thread(target=self._run)
        self._more = threading.Event()
        self._ended = threading.Event()
        self._producer = Producer({
            "bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1,
            "log_level": 0, "message.timeout.ms": 1000 * WAIT_S})

    def _run(self) -> None:
        while not self._ended.is_set():
            value = b"%d" % len(self.sent)
            self.sent.append(value)
            self._producer.produce(self._name, value, partition=0, on_delivery=self._delivered)
            self._producer.poll(0.001)
        self._more.set()

    def _delivered(self, error, _) -> None:
        if error is not None:
            self._errors.append(error)
        self._more.set()

    def more(self) -> None:
        """Wait until one more record is acknowledged."""
        self._more.clear()
        assert self._more.wait(WAIT_S)

    def __enter__(self) -> "Sending":
        self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(WAIT_S) == 0
        assert self._errors == []


def consumed(broker, name: str, count: int, partition: int = 0) -> list[bytes]:
    """Return the first `count` values of a partition."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader",
                         "enable.auto.commit": False, "log_level": 0})
    consumer.assign([TopicPartition(name, partition, 0)])
    values: list[bytes] = []
    end_s = time.monotonic() + WAIT_S
    while len(values) < count and time.monotonic() < end_s:
        values += [message.value() for message in consumer.consume(count - len(values), 1.0)]
    consumer.close()
    return values


def segments(broker, name: str, partition: int = 0) -> dict[str, bytes]:
    """Return file name -> content of a replica's segments, without preallocated space."""
    folder = Path(broker.data_dir) / f"{name}-{partition}"
    try:
        return {path.name: path.read_bytes().rstrip(b"\0") for path in sorted(folder.glob("*.log"))}
    except FileNotFoundError:
        return {}


def reassign(broker, name: str, replicas: dict[int, list[int]]) -> None:
    """Reassign partitions; returns when the reassignment is decided, not complete."""
    new = messages.AlterPartitionReassignmentsRequest
    request = new(timeout_ms=10_000, topics=[new.ReassignableTopic(name=name, partitions=[
        new.ReassignablePartition(partition_index=index, replicas=wanted)
        for index, wanted in replicas.items()])])

    answer = _asked(broker, request, 0)
    assert answer.error_code == 0, answer
    assert [row.error_code for topic in answer.responses for row in topic.partitions] \
        == [0] * len(replicas), answer


def elect(broker, name: str, partition: int = 0) -> int:
    """Request election of the first replica; return the partition's error code."""
    new = messages.ElectLeadersRequest
    answer = _asked(broker, new(election_type=0, timeout_ms=10_000, topic_partitions=[
        new.TopicPartitions(topic=name, partitions=[partition])]), 2)
    assert answer.error_code == 0, answer
    return answer.replica_election_results[0].partition_result[0].error_code


def _asked(broker, request, version: int):
    async def send():
        peer = await Peer.connect("127.0.0.1", broker.port, "test")
        try:
            return await peer.call(request, version)
        finally:
            peer.close()

    return asyncio.run(send())
