"""The loads of the growth curves: one quantity grows, its cost is measured.

Owns: CURVES, the table of curves by name.
Invariants: a curve treats both brokers the same; from point to point one quantity grows, and the
  requested rate or total stays constant; memory is the largest resident set during the point's
  load, file maps included.
"""

import re
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import fanout, loads
from bench.control import wire
from bench.control.joining import come_together
from bench.process import BrokerProcess, forget_peak_rss, peak_rss_bytes
from pylog._native.records import batch
from pylog.protocol import messages

TOPIC_PARTITIONS = 1000
FILES_PART = 0.8  # share of the process's file limit used for segments
SPREAD = 6  # partitions of a topic where their number does not grow
RECORD_BYTES = 100
RATE_PER_S = 5000
TAIL_MB_S, TAIL_BATCH = 20, 10
BATCH_BYTES = 65536
COLD_PARTITIONS = 10
COLD_BATCH = 900
NOBODY = -1
TAIL_RATE_PER_S = 500
COLD_MARGIN_S = 2.5  # around the latency load, its untimed second included


@dataclass(frozen=True)
class Scale:
    """Amount of each load. seconds: duration of loads with a fixed rate."""

    seconds: float
    requests: int
    sized_bytes: int
    cold_bytes: int
    members_wait_s: float


FULL = Scale(seconds=8, requests=200_000, sized_bytes=1_000_000_000, cold_bytes=5_000_000_000,
             members_wait_s=400)
SHORT = Scale(seconds=3, requests=50_000, sized_bytes=200_000_000, cold_bytes=1_000_000_000,
              members_wait_s=150)


@dataclass
class Side:
    """One broker in a curve, and the topics that the curve created on it."""

    broker: BrokerProcess
    scale: Scale
    serial: int = 0
    topics: int = 0  # of the curve `partitions`
    cold: str = ""  # the topic of old records

    def topic(self, stem: str, partitions: int, config: dict | None = None) -> str:
        self.serial += 1
        name = f"{stem}-{self.serial}"
        loads.create_topic(self.broker, name, partitions, config)
        return name


@dataclass(frozen=True)
class Curve:
    """growing: the quantity that the points count. bending: the metric whose growth is compared.
    figures: key to text, in the order of the columns. settings: for both brokers.
    """

    title: str
    growing: str
    points: tuple[int, ...]
    short: tuple[int, ...]
    load: Callable[[Side, int], dict]
    bending: str
    figures: dict[str, str]
    text: str
    settings: tuple[tuple[str, str], ...] = ()


def connections(side: Side, count: int) -> dict:
    """Send one-record requests: in a closed loop, then at a fixed rate over all connections."""
    topic = side.topic("connections", 1)
    done = loads.raw_produce(side.broker, topic, 1, count, 1, 1, RECORD_BYTES,
                             requests=side.scale.requests)
    at_rate = wire.replay(side.broker, [_request(topic)], count, 5, seconds=side.scale.seconds,
                          rate=RATE_PER_S, error_at=18 + len(topic))
    return {"cpu_us": done["connected_cpu_us"], "requests_s": done["requests_s"],
            "rate_cpu_us": at_rate["broker_cpu_s"] / at_rate["requests"] * 1e6,
            "open_cpu_us": done["connection_cpu_us"], "p99_ms": at_rate["p99_us"] / 1e3}


def _request(topic: str) -> bytes:
    """Return a Produce v8 of one record. In its response the error code is 18 bytes plus the topic
    name from the start.
    """
    new = messages.ProduceRequest
    now_ms = time.time_ns() // 1_000_000  # Otherwise retention deletes the record.
    return wire.frame(0, 8, new(acks=-1, timeout_ms=30_000, topic_data=[new.TopicProduceData(
        name=topic, partition_data=[new.PartitionProduceData(
            index=0, records=batch.build([(None, bytes(RECORD_BYTES), now_ms, ())]))])]))


def partitions(side: Side, count: int) -> dict:
    """Send one-record requests to all partitions in turn; each partition has been written once
    before.
    """
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if count > FILES_PART * files_max and side.broker.name == "kafka":
        # Kafka exits when it has no more file descriptors.
        raise loads.LoadFailed(f"{count:,} files, and a process may have {files_max:,} open")
    before = side.broker.cpu_seconds()
    if count < TOPIC_PARTITIONS:
        made, topic, topics, each = count, side.topic("partitions", count), 0, count
    else:
        topic, topics, each = "partitions-of-", count // TOPIC_PARTITIONS, TOPIC_PARTITIONS
        made = count - side.topics * each
        while side.topics < topics:
            loads.create_topic(side.broker, f"{topic}{side.topics:04}", each)
            side.topics += 1

    def write(requests: int) -> dict:
        return loads.raw_produce(side.broker, topic, each, 64, 1, 1, RECORD_BYTES,
                                 requests=requests, topics=topics)

    write(max(count, 64))
    first = {"first_cpu_us": (side.broker.cpu_seconds() - before) / made * 1e6} if made else {}
    done = write(max(count, side.scale.requests))
    return {"cpu_us": done["cpu_s_per_million_requests"], "requests_s": done["requests_s"],
            **first, "p99_ms": done["p99_us"] / 1e3}


def consumers(side: Side, count: int) -> dict:
    """Run consumers of one topic's tail, as in bench.fanout."""
    side.serial += 1
    found = fanout.consume_tails(side.broker, count, TAIL_MB_S * 1e6, TAIL_BATCH,
                                 side.scale.seconds, side.serial)
    return {"cpu_s_per_gb": found["cpu_s_per_gb"], "cpu_s": found["cpu_s"],
            "answer_kb": found["answer_bytes"] / 1e3, "p99_ms": found["p99_us"] / 1e3}


def members(side: Side, count: int) -> dict:
    """Let members of one group of the new protocol join at once, then one leaves."""
    found = wire.run(come_together(side.broker, "new", count), side.scale.members_wait_s)
    return {"cpu_ms": found["cpu_s"] / count * 1e3, "joined_s": found["s"],
            "left_s": found["left_s"], "p99_ms": found["p99_ms"]}


def sizes(side: Side, size: int) -> dict:
    """Write and read records of one size, in batches of BATCH_BYTES or of one record."""
    topic = side.topic("sizes", SPREAD)
    each = max(1, BATCH_BYTES // size)
    requests = max(SPREAD * 4, side.scale.sized_bytes // (each * size))
    done = loads.raw_produce(side.broker, topic, SPREAD, 4, 2, each, size, requests=requests)
    read = loads.raw_fetch(side.broker, topic, SPREAD, requests * each, size)
    loads.delete_topic(side.broker, topic)
    return {"cpu_s_per_gb": done["cpu_s_per_gb"], "fetch_cpu_s_per_gb":
            read["raw_fetch_cpu_s_per_gb"], "mb_s": done["mb_s"], "p99_ms": done["p99_us"] / 1e3}


def cold(side: Side, percent: int) -> dict:
    """Consume the tail at a low rate beside a reader of old records, `percent` of them on disk
    only.
    """
    broker, scale = side.broker, side.scale
    tail = side.topic("tail", 1)
    if percent == NOBODY:
        return _latency(broker, tail, scale)
    requests = scale.cold_bytes // (COLD_BATCH * 1024)
    if not side.cold:
        side.cold = side.topic("cold", COLD_PARTITIONS)
        loads.raw_produce(broker, side.cold, COLD_PARTITIONS, 4, 2, COLD_BATCH, 1024,
                          requests=requests)
    loads.raw_fetch(broker, side.cold, COLD_PARTITIONS, requests * COLD_BATCH, 1024)
    dropped = [path for path in loads.segments(broker.data_dir, side.cold)
               if partition_of(path) < COLD_PARTITIONS * percent // 100]
    read: dict = {}
    seconds = scale.seconds + COLD_MARGIN_S
    before = broker.cpu_seconds()
    with loads.cold_reader(broker.port, side.cold, COLD_PARTITIONS, seconds, read, dropped):
        figures = _latency(broker, tail, scale)
    used = broker.cpu_seconds() - before
    if not read["mb_s"]:
        raise loads.LoadFailed("nothing was read: the reader runs when nobody else wants to")
    return {**figures, "mb_s": read["mb_s"],
            "cpu_s_per_gb": used / (read["mb_s"] * seconds / 1e3)}


def partition_of(segment: Path) -> int:
    """Parse the partition number from the name of the segment's folder."""
    found = re.search(r"-(\d+)$", segment.parent.name)
    assert found is not None, segment
    return int(found[1])


def _latency(broker: BrokerProcess, topic: str, scale: Scale) -> dict:
    found = loads.latency(broker, topic, TAIL_RATE_PER_S, scale.seconds)
    return {"p50_ms": found["p50_us"] / 1e3, "p99_ms": found["p99_us"] / 1e3}


def measured(curve: Curve, side: Side, point: int) -> dict:
    """Return a point's metrics, including peak memory."""
    forget_peak_rss(side.broker.pid)
    return {**curve.load(side, point), "rss_mb": peak_rss_bytes(side.broker.pid) / 1e6}


CURVES = {
    "connections": Curve(
        "Connections", "connections", (1, 10, 100, 1000, 10_000), (1, 100, 1000, 10_000),
        connections, "cpu_us",
        {"cpu_us": "CPU µs a request", "requests_s": "requests/s",
         "rate_cpu_us": "CPU µs a request at 5,000/s",
         "open_cpu_us": "CPU µs a connection", "p99_ms": "p99 at 5,000/s, ms"},
        "Requests of one 100-byte record to one partition (acks=all). First, each connection "
        "sends one request at a time, as fast as responses arrive. Then all connections together "
        "send 5,000 requests per second, and a request's time starts when it was due. The cost of"
        " connecting is measured separately.",
        (("socket.listen.backlog.size", "1024"),)),
    "partitions": Curve(
        "Partitions, all of them written", "partitions", (1, 100, 1000, 10_000, 50_000),
        (1, 100, 1000, 10_000), partitions, "cpu_us",
        {"cpu_us": "CPU µs a request", "requests_s": "requests/s",
         "first_cpu_us": "create one and write its first record, CPU µs", "p99_ms": "p99, ms"},
        "Requests of one 100-byte record, one at a time on 64 connections, which go to all "
        "partitions of the broker in turn (topics of 1,000 partitions)."),
    "consumers": Curve(
        "Consumers of one topic's tail", "consumers", (1, 4, 16, 64, 250, 500), (1, 16, 64, 250),
        consumers, "cpu_s_per_gb",
        {"cpu_s_per_gb": "CPU s/GB read", "cpu_s": "CPU s", "answer_kb": "KB an answer",
         "p99_ms": "p99 end to end, ms"},
        "`bench.fanout`: 20 MB/s of 1 KiB records in batches of ten to six partitions. Each "
        "consumer long-polls all six."),
    "members": Curve(
        "Members of a group", "members", (2, 10, 100, 1000, 5000), (2, 10, 100, 1000), members,
        "cpu_ms",
        {"cpu_ms": "CPU ms a member", "joined_s": "all have a partition, s",
         "left_s": "again after one left, s", "p99_ms": "p99 of a heartbeat, ms"},
        "`bench.control`'s `joining`: members of the new protocol, each over a separate "
        "connection, join at the same time, on a topic with as many partitions; 6 s later one "
        "member leaves."),
    "sizes": Curve(
        "Bytes of a record", "bytes", (10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000),
        (10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000), sizes, "cpu_s_per_gb",
        {"cpu_s_per_gb": "produce, CPU s/GB", "fetch_cpu_s_per_gb": "fetch, CPU s/GB",
         "mb_s": "produce, MB/s", "p99_ms": "p99 of a Produce, ms"},
        "Batches of 64 KiB, or of one record if it is larger, from four connections with two "
        "requests in flight each, to six partitions. A GB is of record values; the framing is "
        "most of a 10-byte record. The records are read back in ranges of 1 MiB.",
        (("message.max.bytes", "12000000"),)),
    "cold": Curve(
        "Bytes read that are not in the page cache", "percent", (NOBODY, 0, 10, 50, 100),
        (NOBODY, 0, 10, 100), cold, "p99_ms",
        {"p99_ms": "tail, p99 end to end, ms", "p50_ms": "tail, p50, ms",
         "cpu_s_per_gb": "CPU s/GB read", "mb_s": "old records read, MB/s"},
        "500 records/s end to end, next to a client that repeatedly reads ten partitions from "
        "their start. Before each pass, this percentage of their pages is dropped from the page "
        "cache (`posix_fadvise`): 100 represents a backlog of many times the memory, 0 a backlog "
        "that fits. No cgroup limits the memory, because the environment did not allow one, so "
        "the kernel's cost of eviction is not included. At -1, there is no reader."),
}
