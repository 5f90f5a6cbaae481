"""The loads of bench.vs: what each runs against a broker, and its results.

Owns: SCENARIOS, the table of loads by name.
Invariants: a scenario treats both brokers the same: it has a Side, and only SETUPS differ by
  broker.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench import loads
from bench.brokers import KAFKA_FLUSH_EACH, RELAXED, PylogBroker
from bench.kafka import KafkaBroker
from bench.placement import Placement, pin, placements, unpinned
from bench.process import BrokerProcess

PARTITIONS = 6
RATE_PER_S = 500
COLD_MARGIN_S = 2.5  # around the latency load, its untimed second included
# Comparable settings: Kafka's default acknowledges from the page cache, and so does our relaxed
# setting.
SETUPS: dict[str, dict[str, dict]] = {
    "cached": {"kafka": {}, "pylog": RELAXED},
    "flushed": {"kafka": KAFKA_FLUSH_EACH, "pylog": {}},
}


@dataclass
class Scale:
    """Sizes of one run, in bytes of record values."""

    native_bytes: dict[int, int]  # by record size
    java_bytes: dict[int, int]
    one_record_requests: int
    latency_s: float
    cold_bytes: int
    flush_s: float
    partitions: int
    connections: int
    floor_bytes: int
    touched_bytes: int
    handshakes: int
    hold_s: float


FULL = Scale(
    native_bytes={1024: 1_000_000_000, 100: 400_000_000},
    java_bytes={1024: 500_000_000, 100: 200_000_000},
    one_record_requests=150_000, latency_s=20, cold_bytes=5_000_000_000, flush_s=8,
    partitions=10_000, connections=2_000, floor_bytes=500_000_000,
    touched_bytes=32_000_000_000, handshakes=10_000, hold_s=15,
)
QUICK = Scale(
    native_bytes={1024: 300_000_000, 100: 100_000_000},
    java_bytes={1024: 150_000_000, 100: 40_000_000},
    one_record_requests=30_000, latency_s=5, cold_bytes=1_000_000_000, flush_s=3,
    partitions=1_000, connections=500, floor_bytes=200_000_000,
    touched_bytes=6_000_000_000, handshakes=3_000, hold_s=6,
)


@dataclass
class Side:
    """One broker kind within a run: starts brokers, and keeps those that scenarios share."""

    name: str
    folder: Path
    scale: Scale
    running: dict[str, BrokerProcess] = field(default_factory=dict)
    cold_topic: str | None = None
    serial: int = 0
    placement: Placement = field(default_factory=lambda: placements()["free"])

    def fresh(self, overrides: dict | None = None) -> BrokerProcess:
        """Create a broker on an empty directory, not started."""
        self.serial += 1
        kind = KafkaBroker if self.name == "kafka" else PylogBroker
        return kind(self.folder / f"{self.name}-{self.serial}", overrides=overrides)

    def shared(self, setup: str) -> BrokerProcess:
        """Return the long-lived broker with SETUPS[setup], started and warmed up at first use."""
        broker = self.running.get(setup)
        if broker is None or not broker.alive():
            with unpinned():
                broker = self.fresh(SETUPS[setup][self.name]).start()
                self.running[setup] = broker
                self.cold_topic = None if setup == "cached" else self.cold_topic
                if setup == "cached":
                    self.warm_up(broker)
        pin(broker.pid, self.placement.broker)
        return broker

    def warm_up(self, broker: BrokerProcess) -> None:
        """Run the same untimed load on both sides: Kafka's JVM compiles during the first run."""
        count = self.scale.native_bytes[100] // 100 // 2
        topic = self.topic()
        loads.create_topic(broker, topic, PARTITIONS)
        loads.rdkafka_produce(broker, topic, 100, count, "none")
        loads.raw_fetch(broker, topic, PARTITIONS, count, 100)
        loads.raw_produce(broker, topic, PARTITIONS, 8, 1, 1, 100,
                          requests=self.scale.one_record_requests // 2)
        loads.delete_topic(broker, topic)

    def topic(self) -> str:
        self.serial += 1
        return f"load-{self.serial}"

    def stop(self) -> None:
        for broker in self.running.values():
            broker.stop()


@dataclass(frozen=True)
class Scenario:
    """run: one round on one side, returns results. floors: key of the floor, its loop kind, the
    result with the unit size, bytes of one write (0: the loop's default). rounds_max: 1 for long
    loads that vary little. pinned: uses a shared broker, pinned to the run's processors. writes:
    writes so much that the machine's memory must be touched before.
    """

    run: Callable[[Side], dict]
    floors: tuple[tuple[str, str, str, int], ...] = ()
    rounds_max: int = 100
    pinned: bool = True
    writes: bool = False


def _bulk(client: str, size: int, codec: str) -> Callable[[Side], dict]:
    def run(side: Side) -> dict:
        broker = side.shared("cached")
        sizes = side.scale.java_bytes if client == "java" else side.scale.native_bytes
        count = sizes[size] // size
        topic = side.topic()
        loads.create_topic(broker, topic, PARTITIONS)
        produce = loads.java_produce if client == "java" else loads.rdkafka_produce
        figures = produce(broker, topic, size, count, codec)
        figures |= loads.rdkafka_consume(broker, topic, PARTITIONS, size, count)
        figures |= loads.raw_fetch(broker, topic, PARTITIONS, count, size)
        figures["rss_mb"] = broker.rss_bytes() / 1e6
        loads.delete_topic(broker, topic)
        return figures
    return run


def _frames(batch: int, in_flight: int, share: int) -> Callable[[Side], dict]:
    """Run our own producer with frames of one size, for which the floor is exact."""
    def run(side: Side) -> dict:
        broker = side.shared("cached")
        topic = side.topic()
        loads.create_topic(broker, topic, PARTITIONS)
        requests = side.scale.native_bytes[1024] // share // (batch * 1024)
        figures = loads.raw_produce(broker, topic, PARTITIONS, 4, in_flight, batch, 1024,
                                    requests=requests)
        loads.delete_topic(broker, topic)
        return figures
    return run


def _one_record(connections: int, in_flight: int) -> Callable[[Side], dict]:
    def run(side: Side) -> dict:
        broker = side.shared("cached")
        topic = side.topic()
        loads.create_topic(broker, topic, PARTITIONS)
        figures = loads.raw_produce(broker, topic, PARTITIONS, connections, in_flight, 1, 100,
                                    requests=side.scale.one_record_requests)
        loads.delete_topic(broker, topic)
        return figures
    return run


def _latency(setup: str) -> Callable[[Side], dict]:
    def run(side: Side) -> dict:
        broker = side.shared(setup)
        topic = side.topic()
        loads.create_topic(broker, topic, 1)
        figures = loads.latency(broker, topic, RATE_PER_S, side.scale.latency_s)
        loads.delete_topic(broker, topic)
        return figures
    return run


def _cold_topic(side: Side, broker: BrokerProcess) -> str:
    """Return the topic of cold data, written once per run."""
    if side.cold_topic is None:
        topic = f"cold-{side.topic()}"
        loads.create_topic(broker, topic, PARTITIONS)
        loads.raw_produce(broker, topic, PARTITIONS, 4, 2, 900, 1024,
                          requests=side.scale.cold_bytes // (900 * 1024))
        side.cold_topic = topic
    return side.cold_topic


def _latency_beside_cold(side: Side) -> dict:
    """Run the latency load three times: undisturbed, beside a bare server that reads the cold
    topic's files and sends them, and beside a client that reads them through the broker.
    """
    broker = side.shared("cached")
    cold = _cold_topic(side, broker)
    files = loads.segments(broker.data_dir, cold)
    seconds = side.scale.latency_s + COLD_MARGIN_S
    figures = {f"alone_{key}": value for key, value in _latency("cached")(side).items()}
    for name, source in (("bare", "bare"), ("cold", broker.port)):
        read: dict = {}
        with loads.cold_reader(source, cold, PARTITIONS, seconds, read, files):
            beside = _latency("cached")(side)
        figures |= {f"{name}_{key}": value for key, value in (beside | read).items()}
    return figures


def _flush(side: Side) -> dict:
    """Run 64 producers, each with one request of ten 100-byte records at a time, acks=all with
    flush.
    """
    broker = side.shared("flushed")
    topic = side.topic()
    loads.create_topic(broker, topic, PARTITIONS)
    loads.raw_produce(broker, topic, PARTITIONS, 64, 1, 10, 100, seconds=1)
    figures = loads.raw_produce(broker, topic, PARTITIONS, 64, 1, 10, 100,
                                seconds=side.scale.flush_s)
    loads.delete_topic(broker, topic)
    return figures


def _start_empty(side: Side) -> dict:
    """Measure spawn to first response on an empty directory (Kafka's is formatted before), with the
    broker's files in the page cache; then memory when idle and per idle connection.
    """
    with side.fresh():
        pass
    with side.fresh() as broker:
        figures = {"start_ms": broker.start_s * 1e3}
        time.sleep(3)
        idle = broker.rss_bytes()
        figures["idle_rss_mb"] = idle / 1e6
        streams = loads.open_idle_connections(broker.port, side.scale.connections)
        time.sleep(0.5)
        grown = broker.rss_bytes() - idle
        figures["connection_kib"] = grown / 1024 / len(streams)
        for stream in streams:
            stream.close()
    return figures


def _many_partitions(side: Side) -> dict:
    """Measure memory per idle partition, and starts with many partitions of one batch each."""
    broker = side.fresh().start()
    try:
        time.sleep(2)
        idle = broker.rss_bytes()
        begin_s = time.monotonic()
        each = 1000
        topics = [side.topic() for _ in range(side.scale.partitions // each)]
        for topic in topics:
            loads.create_topic(broker, topic, each)
        figures = {"create_s": time.monotonic() - begin_s}
        time.sleep(3)
        figures["partition_kib"] = (broker.rss_bytes() - idle) / 1024 / side.scale.partitions
        for topic in topics:
            loads.raw_produce(broker, topic, each, 8, 1, 1, 100, requests=each)
        figures["written_partition_kib"] = (
            (broker.rss_bytes() - idle) / 1024 / side.scale.partitions)
        broker.stop()
        broker.start()
        figures |= _serving(broker, topics, each, "clean")
        for topic in topics:
            loads.raw_produce(broker, topic, each, 8, 1, 1, 100, requests=each)
        broker.kill()
        broker.start()
        figures |= _serving(broker, topics, each, "killed")
    finally:
        broker.stop()
    return figures


def _serving(broker: BrokerProcess, topics: list[str], partitions: int, how: str) -> dict:
    """Return milliseconds from spawn to the first response, and until every partition could be
    read.
    """
    for topic in topics:
        loads.wait_leaders(broker, topic, partitions)
    served_s = time.monotonic() - broker.spawned_at_s
    return {f"{how}_start_ms": broker.start_s * 1e3, f"{how}_serve_ms": served_s * 1e3}


JAVA_BATCH_BYTES = 16384


def _floors(piece: int) -> tuple[tuple[str, str, str, int], ...]:
    return (("cpu_s_per_gb", "recv", "request_bytes", piece),
            ("raw_fetch_cpu_s_per_gb", "sendfile", "answer_bytes", piece),
            ("fetch_cpu_s_per_gb", "sendfile", "reply_bytes", piece))


BATCH_FLOORS = _floors(JAVA_BATCH_BYTES)
TAKE = _floors(0)[:1]
ANSWER = (("cpu_s_per_million_requests", "answer", "request_bytes", 0),)
SCENARIOS: dict[str, Scenario] = {
    "produce-1k-rdkafka": Scenario(_bulk("rdkafka", 1024, "none"), _floors(0), writes=True),
    "produce-100-rdkafka": Scenario(_bulk("rdkafka", 100, "none"), _floors(0), writes=True),
    "produce-1k-java": Scenario(_bulk("java", 1024, "none"), BATCH_FLOORS, writes=True),
    "produce-100-java": Scenario(_bulk("java", 100, "none"), BATCH_FLOORS, writes=True),
    "produce-1k-rdkafka-lz4": Scenario(_bulk("rdkafka", 1024, "lz4"), writes=True),
    "produce-100-rdkafka-lz4": Scenario(_bulk("rdkafka", 100, "lz4"), writes=True),
    "produce-1k-java-lz4": Scenario(_bulk("java", 1024, "lz4"), writes=True),
    "produce-100-java-lz4": Scenario(_bulk("java", 100, "lz4"), writes=True),
    "frames-1m": Scenario(_frames(1000, 2, 1), TAKE, writes=True),
    "frames-128k": Scenario(_frames(125, 4, 1), TAKE, writes=True),
    "frames-16k": Scenario(_frames(15, 4, 2), TAKE, writes=True),
    "one-record": Scenario(_one_record(1, 1), ANSWER),
    "one-record-8": Scenario(_one_record(8, 1), ANSWER),
    "one-record-8x5": Scenario(_one_record(8, 5), ANSWER),
    "e2e": Scenario(_latency("cached")),
    "e2e-cold": Scenario(_latency_beside_cold, writes=True),
    "e2e-flush": Scenario(_latency("flushed")),
    "flush-64": Scenario(_flush),
    "start-empty": Scenario(_start_empty, pinned=False),
    "partitions-10k": Scenario(_many_partitions, rounds_max=1, pinned=False),
}
