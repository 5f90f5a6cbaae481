"""What a producer sees when the leader's process is killed.

Called by: bench.cluster.__main__.
Invariants: (1) a kill is timed from before the signal to the first acknowledgement of a record that
  was handed to the producer after it; (2) a broker is killed only while all three are in sync.
"""

import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.cluster.loads import WAIT_S, create
from bench.cluster.nodes import Cluster
from bench.loads import LoadFailed

SEND_EVERY_S = 0.002
SETTLE_S = 2.0


def kills(cluster: Cluster, topic: str, count: int) -> list[float]:
    """Seconds without an acknowledgement, for each of `count` kill -9 of the leader."""
    create(cluster, topic, 1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0,
                         "log_level": 0, "enable.idempotence": True})
    seen = []
    for _ in range(count):
        leader = _settled(admin, topic)
        _flow(producer, topic, time.monotonic() + 0.5)
        begin_s = time.monotonic()
        cluster.nodes[leader].process.kill()
        seen.append(_flow(producer, topic, None) - begin_s)
        cluster.nodes[leader].kill()
        cluster.nodes[leader].start()
    producer.flush(WAIT_S)
    return seen


def _flow(producer: Producer, topic: str, until_s: float | None) -> float:
    """Sends until `until_s`, or until one of these records is acknowledged: the time of that."""
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


def _settled(admin: AdminClient, topic: str) -> int:
    """The leader, once all three are in sync and have been for a moment."""
    end_s = time.monotonic() + WAIT_S
    good_s = None
    while time.monotonic() < end_s:
        part = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions[0]
        good = len(part.isrs) == 3 and part.leader > 0   # Keeps (2).
        good_s = (good_s or time.monotonic()) if good else None
        if good and time.monotonic() - good_s > SETTLE_S:
            return part.leader
        time.sleep(0.1)
    raise LoadFailed(f"{topic} is not in sync after {WAIT_S} s")
