"""The loads of bench.cluster: operations on three brokers, and their results.

Invariants: both kinds are treated equally; node 1 leads every partition that is written, and the
two others follow, so that CPU can be separated by role.
"""

import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench import loads
from bench.cluster.nodes import Cluster
from bench.loads import GB, LoadFailed

PARTITIONS = 6
RATE_PER_S = 500
WAIT_S = 120.0
IDLE_SETTLE_S = 10.0


def create(cluster: Cluster, topic: str, partitions: int, led_by: int | None = 1) -> None:
    """Create a topic on all three brokers, led by `led_by` or by each in turn. Returns when all
    followers are in sync.
    """
    turns = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    lists = [turns[(led_by - 1) if led_by else number % 3] for number in range(partitions)]
    new = NewTopic(topic, partitions, replica_assignment=lists, config={
        "file.delete.delay.ms": "1000", "min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    try:
        for future in admin.create_topics([new], request_timeout=WAIT_S).values():
            future.result(WAIT_S)
    except KafkaException as refused:
        raise LoadFailed(f"{cluster.name}: {refused}") from refused
    _await_in_sync(admin, cluster, topic, partitions, lists)


def _await_in_sync(admin, cluster: Cluster, topic: str, partitions: int, lists: list) -> None:
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        if len(found) == partitions and all(
                len(part.isrs) == 3 and part.leader == lists[number][0]
                for number, part in found.items()):
            if lists[0][0] != 1 or loads._leaders_serve(cluster, topic, 1):
                return
        time.sleep(0.05)
    raise LoadFailed(f"{cluster.name}: {topic} is not in sync after {WAIT_S} s")


def delete(cluster: Cluster, topic: str) -> None:
    loads.delete_topic(cluster, topic)


def _by_role(before: dict, after: dict, units: float) -> dict:
    spent = {name: (after[name] - before[name]) / units for name in before}
    return {"leader_cpu": spent["node-1"],
            "follower_cpu": (spent["node-2"] + spent["node-3"]) / 2,
            "etcd_cpu": spent["etcd"]}


def produce(cluster: Cluster, topic: str, size: int, total: int) -> dict:
    create(cluster, topic, PARTITIONS)
    count = total // size
    before = cluster.cpu()
    figures = loads.rdkafka_produce(cluster, topic, size, count, "none")
    figures |= _by_role(before, cluster.cpu(), size * count / GB)
    delete(cluster, topic)
    return figures


def one_record(cluster: Cluster, topic: str, connections: int, in_flight: int,
               requests: int) -> dict:
    create(cluster, topic, PARTITIONS)
    before = cluster.cpu()
    figures = loads.raw_produce(cluster, topic, PARTITIONS, connections, in_flight, 1, 100,
                                requests=requests)
    figures |= _by_role(before, cluster.cpu(), requests / 1e6)
    delete(cluster, topic)
    return figures


def latency(cluster: Cluster, topic: str, seconds: float) -> dict:
    create(cluster, topic, 1)
    figures = loads.latency(cluster, topic, RATE_PER_S, seconds)
    delete(cluster, topic)
    return figures


def idle(cluster: Cluster, topic: str, partitions: int, seconds: float) -> dict:
    """With `partitions` led by each in turn: CPU in per cent of a core, memory in MB."""
    begin_s = time.monotonic()
    create(cluster, topic, partitions, None)
    figures = {"create_s": time.monotonic() - begin_s}
    time.sleep(IDLE_SETTLE_S)
    before, begin_s = cluster.cpu(), time.monotonic()
    time.sleep(seconds)
    after, took_s = cluster.cpu(), time.monotonic() - begin_s
    percent = {name: 100 * (after[name] - before[name]) / took_s for name in before}
    figures["node_percent"] = max(percent[name] for name in percent if name != "etcd")
    figures["etcd_percent"] = percent["etcd"] / 3
    figures |= cluster.rss()
    delete(cluster, topic)
    return figures
