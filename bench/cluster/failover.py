"""Kill or restart brokers: the effect on a producer, and the recovery time.

Invariants: a kill is timed from before the signal to the first acknowledgement of a record that was
sent after it; a broker is killed only while all three are in sync.
"""

import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.cluster.loads import WAIT_S, create, delete
from bench.cluster.nodes import Cluster
from bench.kafka import start_tool
from bench.loads import LoadFailed

SEND_EVERY_S = 0.002
FLOW_S = 1.0
SETTLE_S = 2.0
JAVA_RATE = 500
IN_FLIGHT_S = 0.01
TOPIC_PARTITIONS = 1000
# Kafka needs 100 s to read 10,000 logs again on a busy machine.
WHOLE_WAIT_S = 900.0


def librdkafka(cluster: Cluster, topic: str, count: int) -> list[float]:
    """Return seconds until an acknowledgement, for each of `count` kill -9 of the leader.

    Each kill has a new producer: librdkafka's backoff for a broker grows with every failure.
    """
    create(cluster, topic, 1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    seen = []
    for _ in range(count):
        leader = settled(admin, topic)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all",
                             "linger.ms": 0, "log_level": 0, "enable.idempotence": True})
        _flow(producer, topic, None)
        _flow(producer, topic, time.monotonic() + FLOW_S)
        begin_s = time.monotonic()
        cluster.nodes[leader].process.kill()
        seen.append(_flow(producer, topic, None) - begin_s)
        producer.flush(WAIT_S)
        cluster.nodes[leader].kill()
        cluster.nodes[leader].start()
    settled(admin, topic)
    return seen


def _flow(producer: Producer, topic: str, until_s: float | None) -> float:
    """Send until `until_s`, or until one of these records is acknowledged; return that time."""
    acknowledged = []

    def told(error, message) -> None:
        if error is None:
            acknowledged.append(time.monotonic())

    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < (until_s or end_s):
        if acknowledged and until_s is None:
            return acknowledged[0]
        producer.produce(topic, b"x" * 100, partition=0, on_delivery=told)
        producer.poll(SEND_EVERY_S)
    if until_s is None:
        raise LoadFailed(f"no acknowledgement in {WAIT_S} s")
    return until_s


def settled(admin: AdminClient, topic: str) -> int:
    """Return the leader after all three brokers have been in sync for a moment."""
    end_s = time.monotonic() + WAIT_S
    good_s = None
    while time.monotonic() < end_s:
        part = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions[0]
        good = len(part.isrs) == 3 and part.leader > 0
        good_s = (good_s or time.monotonic()) if good else None
        if good and time.monotonic() - good_s > SETTLE_S:
            return part.leader
        time.sleep(0.1)
    raise LoadFailed(f"{topic} is not in sync after {WAIT_S} s")


def java(cluster: Cluster, topic: str, count: int) -> list[float]:
    """Like librdkafka(), with Kafka's producer: Kafka's VerifiableProducer reports each
    acknowledgement.
    """
    create(cluster, topic, 1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    tool = start_tool(
        "org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", cluster.bootstrap,
        "--topic", topic, "--throughput", JAVA_RATE, "--acks", -1, "--max-messages", -1,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    acknowledged: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_acknowledgements, args=(tool.stdout, acknowledged),
                     daemon=True).start()
    seen = []
    try:
        for _ in range(count):
            leader = settled(admin, topic)
            acknowledged.get(timeout=WAIT_S)
            while not acknowledged.empty():
                acknowledged.get()
            begin_s = time.monotonic()
            cluster.nodes[leader].kill()
            at_s = begin_s
            # Requests in flight can still be acknowledged; the outage begins after that.
            while at_s < begin_s + IN_FLIGHT_S:
                at_s = acknowledged.get(timeout=WAIT_S)
            seen.append(at_s - begin_s)
            cluster.nodes[leader].start()
        settled(admin, topic)
    except queue.Empty:
        raise LoadFailed(f"no acknowledgement in {WAIT_S} s") from None
    finally:
        tool.kill()
        tool.wait()
    return seen


def _acknowledgements(lines: Iterable[str], told: queue.SimpleQueue) -> None:
    for line in lines:
        if '"producer_send_success"' in line:
            told.put(time.monotonic())


def restart(cluster: Cluster, topic: str, partitions: int) -> dict:
    """Restart a broker; return the time from its start until it is in every in-sync set."""
    create(cluster, topic, partitions, None)
    time.sleep(SETTLE_S)
    node = cluster.nodes[3]
    begin_s = time.monotonic()
    node.stop()
    stopped_s = time.monotonic()
    node.start()
    _until(cluster.nodes[1], [topic], _is_whole)
    in_sync_s = time.monotonic() - stopped_s
    delete(cluster, topic)
    return {"stop_s": stopped_s - begin_s, "in_sync_s": in_sync_s}


def dies(cluster: Cluster, topic: str, partitions: int) -> dict:
    """kill -9 of the broker that leads all partitions; return the time until others lead them, and
    the time from its restart until it is in every in-sync set again.
    """
    # Kafka's controller accepts no more at once.
    topics = [f"{topic}-{number}" for number in range(partitions // TOPIC_PARTITIONS)]
    for name in topics:
        create(cluster, name, TOPIC_PARTITIONS)
    time.sleep(SETTLE_S)
    begin_s = time.monotonic()
    cluster.nodes[1].kill()
    _until(cluster.nodes[2], topics, lambda part: part.leader not in (-1, 1))
    led_s = time.monotonic() - begin_s
    begin_s = time.monotonic()
    cluster.nodes[1].start()
    _until(cluster.nodes[2], topics, _is_whole, WHOLE_WAIT_S)
    in_sync_s = time.monotonic() - begin_s
    for name in topics:
        delete(cluster, name)
    return {"led_s": led_s, "in_sync_s": in_sync_s}


def _is_whole(part) -> bool:
    return len(part.isrs) == 3


def _until(node, topics: list[str], is_so: Callable, wait_s: float = WAIT_S) -> None:
    """Query that node until all partitions satisfy the condition."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    end_s = time.monotonic() + wait_s
    for name in topics:
        while not all(map(is_so, admin.list_topics(name, timeout=WAIT_S)
                          .topics[name].partitions.values())):
            if time.monotonic() > end_s:
                raise LoadFailed(f"{name} is not as it should be after {wait_s} s")
            time.sleep(0.02)
