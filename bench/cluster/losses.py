"""Losses besides a leader: the active controller, the quorum's leader, a disconnected host.

Invariants: times run from before the loss; the lost node has no replica of the partitions that are
written and read, except the host, which leads them; a node is lost only while all three are in
sync; the client that changes or writes does not cache the leader and waits only for its own
timeout: it tries the remaining nodes until one succeeds.
"""

import asyncio
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from statistics import median

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster.failover import settled
from bench.cluster.loads import WAIT_S, create
from bench.cluster.nodes import Cluster
from bench.loads import LoadFailed
from bench.network import Network
from pylog._native.records import batch
from pylog.peer.connection import Peer
from pylog.peer.errors import PeerError
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

FLOW_S = 3.0
SEND_EVERY_S = 0.002
TRY_EVERY_S = 0.01
CALL_S = 5.0
AFTER_S = 3.0
CREATE_VERSION, PRODUCE_VERSION, QUORUM_VERSION = 7, 9, 2


def controller(cluster: Cluster, topic: str, count: int) -> dict:
    """kill -9 of the active controller, whose broker has no replica of the written partitions."""
    def kill(number: int) -> None:
        cluster.nodes[number].kill()

    return _lost(cluster, topic, count, lambda: quorum_leader(cluster), kill,
                 lambda number: cluster.nodes[number].start())


def quorum(cluster: Cluster, topic: str, count: int) -> dict:
    """kill -9 of the etcd leader; for Kafka the same as killing the active controller."""
    if cluster.name.startswith("kafka"):
        return {}

    def kill(number: int) -> None:
        for pid in cluster.nodes[number].etcd_pids():
            os.kill(pid, signal.SIGKILL)

    return _lost(cluster, topic, count, lambda: _leading_etcd(cluster), kill, lambda number: None)


def host(cluster: Cluster, network: Network, topic: str, count: int) -> dict:
    """Disconnect the host of a leader; return seconds until another leader acknowledges, and True
    if the host was also the active controller.
    """
    create(cluster, topic, 1, 2)  # The clients of the loads are on loopback.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    seen: dict[str, list[float]] = {"with_controller": [], "without": []}
    for _ in range(count):
        leader = settled(admin, topic)
        kind = "with_controller" if quorum_leader(cluster) == leader else "without"
        left = [node for number, node in cluster.nodes.items() if number != leader]
        begin_s = time.monotonic()
        network.isolate(leader)
        seen[kind].append(asyncio.run(_written(left, topic)) - begin_s)
        network.heal()
    settled(admin, topic)
    return {**{f"{kind}_max_s": max(values) for kind, values in seen.items() if values},
            "p50_s": median([*seen["with_controller"], *seen["without"]])}


# ---- requests to the remaining nodes -----------------------------------------------------------

def quorum_leader(cluster: Cluster) -> int:
    """Return the node that is the active controller."""
    new = messages.DescribeQuorumRequest
    request = new(topics=[new.TopicData(topic_name="__cluster_metadata", partitions=[
        new.PartitionData(partition_index=0)])])

    async def ask() -> int:
        answer = await _until_good(cluster.nodes.values(), request, QUORUM_VERSION,
                                   lambda answer: not answer.error_code)
        return answer.topics[0].partitions[0].leader_id

    return asyncio.run(ask())


async def _until_good(nodes, request, version: int, is_good: Callable):
    """Return the first successful response of any node, with no timeout except the client's own."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        for node in nodes:
            try:
                peer = await Peer.connect(node.host, node.port, "bench", CALL_S)
                try:
                    answer = await peer.call(request, version, CALL_S)
                finally:
                    peer.close()
            except PeerError:
                continue
            if is_good(answer):
                return answer
        await asyncio.sleep(TRY_EVERY_S)
    raise LoadFailed(f"nobody agreed to a {type(request).__name__} in {WAIT_S} s")


async def _changed(nodes, topic: str, replicas: list[int]) -> float:
    """Return the time when a topic has been created."""
    new = messages.CreateTopicsRequest
    request = new(timeout_ms=int(CALL_S * 1000), topics=[new.CreatableTopic(
        name=topic, num_partitions=-1, replication_factor=-1, assignments=[
            new.CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)])])
    # An earlier attempt may have succeeded without a response.
    done = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    await _until_good(nodes, request, CREATE_VERSION,
                      lambda answer: answer.topics[0].error_code in done)
    return time.monotonic()


async def _written(nodes, topic: str) -> float:
    """Return the time when a record has been acknowledged."""
    assert api.PRODUCE == 0
    new = messages.ProduceRequest
    request = new(acks=-1, timeout_ms=int(CALL_S * 1000), topic_data=[new.TopicProduceData(
        name=topic, partition_data=[new.PartitionProduceData(
            index=0, records=batch.build([(None, b"x", time.time_ns() // 1_000_000, ())]))])])
    await _until_good(nodes, request, PRODUCE_VERSION, lambda answer: not answer.responses[
        0].partition_responses[0].error_code)
    return time.monotonic()


def _leading_etcd(cluster: Cluster) -> int:
    """Return the node whose etcd is the leader."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        for number, node in cluster.nodes.items():
            try:
                with urllib.request.urlopen(
                        f"http://{node.etcd}/v3/maintenance/status", b"{}", 1) as answer:
                    status = json.load(answer)
            except (OSError, ValueError):
                continue
            if status.get("leader") == status["header"]["member_id"]:
                return number
        time.sleep(0.05)
    raise LoadFailed(f"no etcd leads in {WAIT_S} s")


# ---- concurrent load ----------------------------------------------------------------------------

class Traffic:
    """A producer and a consumer of one partition, each on a thread."""

    def __init__(self, bootstrap: str, topic: str):
        self.acknowledged: list[float] = []
        self.received: list[float] = []
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=work, args=(bootstrap, topic), daemon=True)
                         for work in (self._write, self._read)]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        end_s = time.monotonic() + WAIT_S
        while not self.received:
            if time.monotonic() > end_s:
                raise LoadFailed(f"nothing was received in {WAIT_S} s")
            time.sleep(0.01)
        time.sleep(FLOW_S)
        return self

    def __exit__(self, *exception) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _write(self, bootstrap: str, topic: str) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0,
                             "log_level": 0})
        while not self._ends.is_set():
            producer.produce(topic, b"x" * 100, partition=0, on_delivery=self._told)
            producer.poll(SEND_EVERY_S)
        producer.flush(WAIT_S)

    def _told(self, error, _message) -> None:
        if error is None:
            self.acknowledged.append(time.monotonic())

    def _read(self, bootstrap: str, topic: str) -> None:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused",
                             "log_level": 0, "fetch.wait.max.ms": 100})
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not self._ends.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.received.append(time.monotonic())
        consumer.close()

    def pause_s(self, begin_s: float, end_s: float) -> float:
        """Return the longest time without an acknowledgement, or without a received record."""
        return max(_longest(times, begin_s, end_s)
                   for times in (list(self.acknowledged), list(self.received)))


def _longest(times: list[float], begin_s: float, end_s: float) -> float:
    points = [begin_s, *(at_s for at_s in times if begin_s < at_s < end_s), end_s]
    return max(after - before for before, after in zip(points, points[1:]))


def _lost(cluster: Cluster, topic: str, count: int, find: Callable[[], int],
          lose: Callable[[int], None], bring_back: Callable[[int], object]) -> dict:
    """Lose the node that find() returns, `count` times: seconds to the next metadata change, and
    the longest pause of records during and before it.
    """
    create(cluster, topic, 1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    changes, pauses, usual = [], [], []
    for turn in range(count):
        settled(admin, topic)
        number = find()
        others = [other for other in cluster.nodes if other != number]
        apart = f"{topic}-apart-{turn}"
        admin.create_topics([NewTopic(apart, 1, replica_assignment=[others], config={
            "min.insync.replicas": "2"})])[apart].result(WAIT_S)
        # All three brokers must be in sync before the loss.
        bootstrap = ",".join(cluster.nodes[other].bootstrap for other in others)
        with Traffic(bootstrap, apart) as traffic:
            begin_s = time.monotonic()
            usual.append(traffic.pause_s(begin_s - FLOW_S / 2, begin_s))
            lose(number)
            changes.append(asyncio.run(_changed(
                [cluster.nodes[other] for other in others], f"{apart}-new", others)) - begin_s)
            time.sleep(AFTER_S)
            pauses.append(traffic.pause_s(begin_s, begin_s + AFTER_S))
        bring_back(number)
    settled(admin, topic)
    return {"p50_s": median(changes), "max_s": max(changes), "pause_s": max(pauses),
            "usual_pause_s": max(usual)}
