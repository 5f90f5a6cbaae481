"""`pylog perf`: measure throughput and latency of this client with a cluster.

Owns: the topic that it creates if none is given, during the run.
Invariants: a given topic is never deleted; CPU time is this process's: the cost of the client, not
  of the broker; a latency lasts from the send call to the acknowledgement, an end-to-end latency to
  the arrival at the consumer.
Source: Kafka's performance tools, for the metrics.
"""

from __future__ import annotations

import collections
import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import click

from pylog.client.types import TopicPartition
from pylog.protocol.counts import counted
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import TOPIC, Tools
from pylog.tools.cli.output import span
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.records.histogram import Latencies

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PACE_S = 0.002
TABLE_ROWS = 20_000
POLL_S = 0.5
IDLE_S = 10.0
TEXT = b"the quick brown fox jumps over the lazy dog 0123456789 "

topic_option = click.option("-t", "--topic", type=TOPIC,
                            help="[default: a new one, deleted at the "
                            "end]")
size_option = click.option("-s", "--size", "value_bytes", default=100, show_default=True,
                           type=click.IntRange(min=1), help="Size of a value in bytes.")
partitions_option = click.option("-p", "--partitions", "partition_count", default=1,
                                 show_default=True, type=click.IntRange(min=1),
                                 help="Partitions of a new topic.")
codec_option = click.option("-z", "--compression", type=click.Choice(CODECS), default="none",
                            show_default=True, help="Compression codec of batches.")
acks_option = click.option("-a", "--acks", type=click.Choice(["0", "1", "all"]), default="all",
                           show_default=True, help="Acknowledgements to wait for.")


@click.group(cls=Tools)
def perf() -> None:
    """Measure producing, consuming, and end-to-end latency.

    Pass client settings with -X, such as -X batch.size=131072 -X linger.ms=10.
    """


@contextlib.contextmanager
def _topic(session: Session, name: str | None, partition_count: int) -> Iterator[str]:
    """Yield the topic, created for the run if none is given. Deletes only a topic that it created.
    """
    if name is not None:
        session.run(lambda cluster: cluster_queries.topics(cluster, [name]))
        yield name
        return
    made = f"pylog-perf-{os.getpid()}"
    from pylog.client.admin.types import NewTopic

    async def create(admin: Any) -> None:
        await admin.create_topics([NewTopic(made, partition_count)])
        await admin.cluster.topic(made)

    session.administer(create)
    try:
        yield made
    finally:
        session.administer(lambda admin: admin.delete_topics([made]))


def _needed(module: str, what: str) -> None:
    """Import a module before the measurement starts. Raises ToolError."""
    import importlib

    try:
        importlib.import_module(module)
    except ImportError:
        raise ToolError(f"{what} needs {module}: pip install {module}") from None


def _value(count: int) -> bytes:
    """Return text that compresses like natural text."""
    return (TEXT * (count // len(TEXT) + 1))[:count]


class Clock:
    """Measures wall time and this process's CPU time since its creation."""

    def __init__(self) -> None:
        self.begun_s, self.cpu_s = time.perf_counter(), time.process_time()

    def result(self, records: int, byte_count: int) -> dict[str, Any]:
        seconds = max(time.perf_counter() - self.begun_s, 1e-9)
        cpu = time.process_time() - self.cpu_s
        return {"records": records, "bytes": byte_count, "seconds": round(seconds, 4),
                "records_per_second": round(records / seconds, 1),
                "megabytes_per_second": round(byte_count / seconds / 1e6, 3),
                "cpu_seconds_per_million": round(cpu / max(records, 1) * 1e6, 3)}


def _print(session: Session, found: dict[str, Any], latencies: Latencies | None) -> None:
    if latencies is not None and latencies.count:
        found["latency_ms"] = latencies.summary()
    out = session.out
    if out.as_json:
        out.document(found)
        return
    out.line(f"{counted(found['records'], 'record')} in {span(found['seconds'])}: "
             f"{found['records_per_second']:,.0f} records/s, "
             f"{found['megabytes_per_second']:.1f} MB/s, "
             f"{found['cpu_seconds_per_million']:.2f} s of processor time per million")
    if "latency_ms" in found:
        out.line("latency ms: " + "  ".join(f"{key} {value:.3f}" for key, value
                                            in found["latency_ms"].items()))
        out.line()
        for line in latencies.drawing() if latencies is not None else ():
            out.line(line)


# Producing

@perf.command("produce")
@topic_option
@click.option("-n", "--count", default=100_000, show_default=True, type=click.IntRange(min=1),
              help="Number of records.")
@size_option
@click.option("-r", "--rate", type=click.FloatRange(min=0.001), metavar="N",
              help="Records per second.  [default: unlimited]")
@click.option("--columns", is_flag=True, help="Send Arrow tables instead of single records.")
@partitions_option
@codec_option
@acks_option
@click.pass_obj
def perf_produce(session: Session, topic: str | None, count: int, value_bytes: int,
                 rate: float | None, columns: bool, partition_count: int, compression: str,
                 acks: str) -> None:
    """Produce records; latency is measured until the acknowledgement."""
    from pylog.client import Producer

    if columns and rate is not None:
        raise click.UsageError("--rate is for records, not for --columns")
    if columns:
        _needed("pyarrow", "--columns")
    latencies = Latencies()
    settings = session.settings_of("producer", compression_type=compression, acks=acks)
    with _topic(session, topic, partition_count) as name, \
            Producer.from_settings(settings) as producer, \
            session.out.progress("produce", count) as done:
        producer.partitions_for(name)
        clock = Clock()
        if columns:
            _send_tables(producer, name, count, value_bytes, done)
        else:
            _send_records(producer, name, count, value_bytes, rate, latencies, done)
        found = clock.result(count, count * value_bytes)
    _print(session, {"test": "produce", "mode": "columns" if columns else "records",
                     "compression": compression, "acks": acks, "value_bytes": value_bytes,
                     **found}, latencies)


def _send_records(producer: Any, topic: str, count: int, value_bytes: int, rate: float | None,
                  latencies: Latencies, done: Any) -> None:
    value = _value(value_bytes)
    failures: list[Exception] = []
    clock = time.perf_counter

    def acknowledged(begun: float) -> Any:
        def note(metadata: Any, error: Exception | None) -> None:
            if error is not None:
                failures.append(error)
            else:
                latencies.add(clock() - begun)
        return note

    # With --rate measure every record; at full speed one in a hundred, which costs little.
    step = 1 if rate is not None else max(1, count // 10_000)
    begun = clock()
    for number in range(count):
        if number % step == 0:
            producer.send(topic, value, on_delivery=acknowledged(clock()))
        else:
            producer.send(topic, value)
        if rate is not None:
            _pace(begun, number + 1, rate)
        if number % 1000 == 999:
            done(1000)
            if failures:
                raise ToolError(str(failures[0]))
    lost = producer.flush()
    if lost:  # Most records have no callback.
        raise ToolError(f"{counted(lost, 'record')} not acknowledged"
                        + (f": {failures[0]}" if failures else ""))


def _pace(begun: float, count: int, rate: float) -> None:
    ahead_s = count / rate - (time.perf_counter() - begun)
    if ahead_s > PACE_S:
        time.sleep(ahead_s)


def _send_tables(producer: Any, topic: str, count: int, value_bytes: int, done: Any) -> None:
    import pyarrow as pa

    value = _value(value_bytes)
    left = count
    table = pa.table({"value": pa.array([value] * min(left, TABLE_ROWS), pa.binary())})
    sent: collections.deque[Any] = collections.deque()
    while left > 0:
        rows = min(left, table.num_rows)
        sent.append(producer.send_arrow(table.slice(0, rows), topic))
        left -= rows
        done(rows)
        while sent and sent[0].done():
            sent.popleft().result()
    producer.flush()
    for delivery in sent:
        delivery.result()


# Consuming

@perf.command("consume")
@click.option("-t", "--topic", type=TOPIC, required=True, help="Topic to read from its beginning.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Maximum number of records.  "
              "[default: all]")
@click.option("--columns", is_flag=True, help="Poll NumPy columns instead of single records.")
@click.pass_obj
def perf_consume(session: Session, topic: str, count: int | None, columns: bool) -> None:
    """Consume a topic from its beginning."""
    from pylog.client import Consumer

    if columns:
        _needed("numpy", "--columns")
    parts = _parts(session, topic)
    settings = session.settings_of("consumer", enable_auto_commit=False, max_poll_records=10_000)
    settings.pop("group.id", None)
    with Consumer.from_settings(settings) as consumer:
        consumer.assign(parts)
        first, last = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
        there = sum(last[part] - first[part] for part in parts)
        wanted = there if count is None else min(count, there)
        clock = Clock()
        consumer.seek_to_beginning(*parts)
        with session.out.progress("consume", wanted) as done:
            records, byte_count = _take(consumer, wanted, columns, done)
        found = clock.result(records, byte_count)
    _print(session, {"test": "consume", "mode": "columns" if columns else "records", **found}, None)


def _parts(session: Session, topic: str) -> list[TopicPartition]:
    async def query(cluster: Any) -> list[TopicPartition]:
        return cluster_queries.partitions_of(await cluster_queries.topics(cluster, [topic]))

    found: list[TopicPartition] = session.run(query)
    return found


def _take(consumer: Any, wanted: int, columns: bool, done: Any) -> tuple[int, int]:
    """Return (records, bytes of their values). Stops if no more records arrive: offsets have gaps.
    """
    records = byte_count = 0
    heard_s = time.perf_counter()
    while records < wanted and time.perf_counter() - heard_s < IDLE_S:
        if columns:
            found = consumer.poll_numpy(POLL_S, columns=("offset", "value"))
            count = len(found["offset"]) if found else 0
            byte_count += int(found["value_offsets"][-1]) if found else 0
        else:
            rows = consumer.poll(POLL_S)
            count = len(rows)
            byte_count += sum([len(row.value or b"") for row in rows])
        if count:
            heard_s = time.perf_counter()
            records += count
            done(count)
        elif all(consumer.position(part) >= end for part, end in
                 consumer.end_offsets(consumer.assignment()).items()):
            break
    return records, byte_count


# End to end

@perf.command("end-to-end")
@topic_option
@click.option("-n", "--count", default=2_000, show_default=True, type=click.IntRange(min=1),
              help="Number of records.")
@size_option
@click.option("-r", "--rate", type=click.FloatRange(min=0.001), default=500.0, show_default=True,
              metavar="N", help="Records per second.")
@partitions_option
@codec_option
@acks_option
@click.pass_obj
def perf_end_to_end(session: Session, topic: str | None, count: int, value_bytes: int,
                    rate: float, partition_count: int, compression: str, acks: str) -> None:
    """Produce at a fixed rate and consume at the same time; latency is measured until the arrival.
    """
    latencies = Latencies()
    with _topic(session, topic, partition_count) as name:
        found = _end_to_end(session, name, count, max(value_bytes, 8), rate,
                            {"compression_type": compression, "acks": acks, "linger_ms": 0},
                            latencies)
    _print(session, {"test": "end-to-end", "rate": rate, "compression": compression, "acks": acks,
                     "value_bytes": value_bytes, **found}, latencies)


def _end_to_end(session: Session, topic: str, count: int, value_bytes: int, rate: float,
                own: dict[str, Any], latencies: Latencies) -> dict[str, Any]:
    import threading

    from pylog.client import Consumer, Producer

    parts = _parts(session, topic)
    settings = session.settings_of("consumer", enable_auto_commit=False)
    settings.pop("group.id", None)
    filler = _value(value_bytes - 8)
    failures: list[BaseException] = []
    with Consumer.from_settings(settings) as consumer, \
            Producer.from_settings(session.settings_of("producer", **own)) as producer:
        consumer.assign(parts)
        for part, end in consumer.end_offsets(parts).items():
            consumer.seek(part, end)
        consumer.poll(0.1)
        producer.partitions_for(topic)

        def send() -> None:
            begun = time.perf_counter()
            try:
                for number in range(count):
                    producer.send(topic, time.perf_counter_ns().to_bytes(8, "big") + filler)
                    _pace(begun, number + 1, rate)
                producer.flush()
            except Exception as error:  # Set by the consuming thread.
                failures.append(error)

        clock = Clock()
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        received = 0
        heard_s = time.perf_counter()
        with session.out.progress("end to end", count) as done:
            while received < count and time.perf_counter() - heard_s < IDLE_S and not failures:
                rows = consumer.poll(POLL_S)
                now_ns = time.perf_counter_ns()
                for row in rows:
                    latencies.add((now_ns - int.from_bytes((row.value or b"")[:8], "big")) / 1e9)
                if rows:
                    heard_s = time.perf_counter()
                    received += len(rows)
                    done(len(rows))
        found = clock.result(received, received * value_bytes)
        sender.join(session.timeout_s)
    if failures:
        raise ToolError(str(failures[0]))
    if received < count:
        raise ToolError(f"{received} of {count} records arrived")
    return found


COMMANDS = {"perf": perf}
