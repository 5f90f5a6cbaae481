"""`pylog produce`: send lines, documents or whole files as records.

Owns: the producer while the command runs.
Invariants: the command succeeds only if every record is acknowledged; `--format records` sends the
  output of `pylog consume --json` unchanged; a topic is created only with --create, so that a
  mistyped name is an error.
Source: kcat and Kafka's console producer, for the options.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import click

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import NewTopic
from pylog.protocol.counts import counted
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import TOPIC, Tool, pairs, registry_option
from pylog.tools.cli.output import size, span
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.cli.time_arguments import moment
from pylog.tools.records import column_sender

FORMATS = ("lines", "raw", "json", "records", "avro")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RATE_STEP_S = 0.01
# With these settings each record passes through Python.
ONE_BY_ONE = ("partitioner.class", "partitioner.ignore.keys", "interceptor.classes",
              "key.serializer", "value.serializer")
PARTITIONS_MAX = 10_000  # Protects against creating a topic with more by accident.


class InputRecord(NamedTuple):
    """One record to send."""

    key: Any
    value: Any
    headers: list[tuple[str, bytes | None]]
    partition: int | None
    timestamp: int | None


@click.command(cls=Tool)
@click.argument("topic", type=TOPIC)
@click.argument("files", nargs=-1, type=click.File("rb"), metavar="[FILE]...")
@click.option("-f", "--format", "kind", type=click.Choice(FORMATS), default="lines",
              show_default=True, help="lines: one value per line; raw: one value per file; json: "
              "JSON lines; records: lines as `consume --json` prints them; avro: JSON lines, sent "
              "as Avro.")
@click.option("-k", "--key", help="Key of every record.")
@click.option("-K", "--key-separator", metavar="TEXT", help="Separator between key and value.")
@click.option("-H", "--header", "headers", metavar="KEY=VALUE", multiple=True,
              help="A header of every record; may be repeated.")
@click.option("-p", "--partition", type=click.IntRange(min=0),
              help="Partition of every record.  [default: by key]")
@click.option("-z", "--compression", type=click.Choice(CODECS),
              help="Compression codec of batches.")
@click.option("-a", "--acks", type=click.Choice(["0", "1", "all"]),
              help="Acknowledgements to wait for.")
@click.option("-r", "--rate", type=click.FloatRange(min=0.001), metavar="N",
              help="Maximum number of records per second.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Maximum number of records.")
@click.option("-t", "--timestamp", metavar="TIME",
              help="Timestamp of every record.  [default: now]")
@click.option("--tombstones", is_flag=True, help="Send an empty value as null.")
@registry_option
@click.option("--schema", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Avro schema of the values.  [default: the topic's latest]")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist, with as many "
              "partitions as the records name.")
@click.option("--partitions", type=click.IntRange(min=1), metavar="N",
              help="Partitions of a topic that --create creates.")
@click.option("--by-key", is_flag=True, help="Choose partitions by key and ignore the partition "
              "numbers in records.")
@click.pass_obj
def produce(session: Session, topic: str, files: tuple[BinaryIO, ...], create: bool,
            partitions: int | None, rate: float | None, count: int | None,
            compression: str | None, acks: str | None, **asked: Any) -> None:
    """Send records from files or from standard input."""
    if partitions is not None and not create:
        raise ToolError("--partitions needs --create")
    target = Target(session, topic, *session.administer(
        lambda admin: _ready(admin, topic, create, partitions)))
    if asked["partition"] is not None:
        target.check(asked["partition"])
    own = {name: value for name, value in (("compression_type", compression), ("acks", acks))
           if value is not None}
    settings = session.settings_of("producer", **own)
    read, total = files or (sys.stdin.buffer,), sum(_size(file) for file in files)
    session.log_warnings()
    if _are_plain(asked, rate, settings):
        found = _send_lines(session, topic, read, _plan(session, asked, count), settings, total)
    else:
        given = target.within(_given(session, topic, read, asked))
        if count is not None:
            given = itertools.islice(given, count)
        found = _send(session, topic, given, rate, settings, total)
    each = "  ".join(f"{number}: {row['records']}" for number, row in found["partitions"].items())
    session.out.result(found, f"{counted(found['records'], 'record')} to {topic}, "
                       f"{size(found['bytes'])} in {span(found['seconds'])}"
                       + (f"  (partition {each})" if each else ""))


class Target:
    """The topic's partitions. may_grow: this command created the topic."""

    def __init__(self, session: Session, topic: str, count: int, may_grow: bool):
        self.session, self.topic, self.count, self.may_grow = session, topic, count, may_grow

    def within(self, given: Iterator[InputRecord]) -> Iterator[InputRecord]:
        """Yield the records after the topic has their partitions. Raises ToolError."""
        for record in given:
            if record.partition is not None and record.partition >= self.count:
                self._grow(record.partition)
            yield record

    def check(self, partition: int) -> None:
        """Raise ToolError if the topic does not have the partition."""
        if partition >= self.count:
            raise ToolError(f"topic {self.topic} has {counted(self.count, 'partition')}, from 0; "
                            f"no partition {partition}")

    def _grow(self, partition: int) -> None:
        if not self.may_grow or not 0 <= partition < PARTITIONS_MAX:
            try:
                self.check(partition)
            except ToolError as error:
                raise ToolError(f"{error}; add --by-key to choose partitions by key") from None
        self.session.administer(lambda admin: admin.create_partitions(
            {self.topic: partition + 1}))
        self.count = partition + 1


async def _ready(admin: Admin, topic: str, create: bool, partitions: int | None
                 ) -> tuple[int, bool]:
    """Return (number of partitions, True if it may grow). Creates a topic only with --create."""
    try:
        return len((await cluster_queries.topics(admin.cluster, [topic]))[0].partitions), False
    except cluster_queries.UnknownName as error:
        if not create:
            raise ToolError(f"{error}; add --create to create it") from None
    await admin.create_topics([topic if partitions is None else NewTopic(topic, partitions)])
    return len((await admin.cluster.topic(topic)).partitions), partitions is None


def _size(file: BinaryIO) -> int:
    try:
        return os.fstat(file.fileno()).st_size
    except (OSError, ValueError):
        return 0


# Reading

def _given(session: Session, topic: str, files: tuple[BinaryIO, ...], asked: dict[str, Any]
           ) -> Iterator[InputRecord]:
    """Yield every record of the input, in order."""
    headers: list[tuple[str, bytes | None]] = [
        (key, value.encode()) for key, value in pairs(asked["headers"], "--header").items()]
    timestamp = asked["timestamp"]
    stamp = moment(timestamp, session.now_ms()) if timestamp else None
    encode = _encoder(topic, asked)
    key = asked["key"].encode() if asked["key"] is not None else None
    separator = asked["key_separator"].encode() if asked["key_separator"] else None

    def record(data: bytes) -> InputRecord:
        own = key
        if separator is not None:
            own, found, data = data.partition(separator)
            if not found:
                raise ToolError(f"a line without {asked['key_separator']!r} between key and value")
        value = None if not data and asked["tombstones"] else encode(data)
        return InputRecord(own, value, headers, asked["partition"], stamp)

    for file in files:
        if asked["kind"] == "raw":
            yield record(file.read())
            continue
        for number, line in enumerate(file, 1):
            data = line.removesuffix(b"\n")
            try:
                yield _json_record(data, headers, asked) if asked["kind"] == "records" \
                    else record(data)
            except (ValueError, ToolError) as error:
                name = getattr(file, "name", "input")
                raise ToolError(f"{name}, line {number}: {error}") from None


def _encoder(topic: str, asked: dict[str, Any]) -> Callable[[bytes], bytes]:
    if asked["kind"] == "json":
        return _checked
    if asked["kind"] == "avro":
        return _avro(topic, asked)
    return bytes


def _checked(data: bytes) -> bytes:
    json.loads(data)
    return data


def _avro(topic: str, asked: dict[str, Any]) -> Callable[[bytes], bytes]:
    if not asked["registry"]:
        raise ToolError("avro needs --registry URL")
    from pylog.client.serialization.avro import Avro
    from pylog.client.serialization.registry import SchemaRegistry

    registry = SchemaRegistry(asked["registry"])
    if asked["schema"]:
        with open(asked["schema"], encoding="utf-8") as file:
            text = file.read()
    else:
        text = registry.version(f"{topic}-value")[1].text
    avro = Avro(registry, text)
    return lambda data: avro.serialize(topic, json.loads(data))


def _json_record(line: bytes, headers: list[tuple[str, bytes | None]], asked: dict[str, Any]
                 ) -> InputRecord:
    """Parse a record as `pylog consume --json` prints it."""
    row = json.loads(line)
    if not isinstance(row, dict) or "value" not in row:
        raise ValueError('expected {"value": ..., "key": ..., "headers": [...]}')
    partition = asked["partition"]
    if partition is None and not asked["by_key"]:
        partition = row.get("partition")
    own = [(one["key"], _bytes(one["value"])) for one in row.get("headers") or ()]
    return InputRecord(_bytes(row.get("key")), _bytes(row["value"]), [*own, *headers],
                       partition, row.get("timestamp"))


def _bytes(value: Any) -> bytes | None:
    """Return text, hexadecimal digits after 0x, or a document, as bytes."""
    if value is None:
        return None
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    if value.startswith("0x"):
        try:
            return bytes.fromhex(value[2:])
        except ValueError:
            pass  # Text that happens to begin with 0x.
    return value.encode()


# Sending

class Outcome:
    """Collects acknowledgements; updated on the client's thread."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.error: BaseException | None = None
        self.partitions: dict[int, list[int]] = {}

    def __call__(self, metadata: Any, error: Exception | None) -> None:
        if error is not None:
            self.error = self.error or error
            return
        self.acknowledged += 1
        found = self.partitions.setdefault(metadata.partition,
                                           [0, metadata.offset, metadata.offset])
        found[0] += 1
        found[2] = max(found[2], metadata.offset)


def _send(session: Session, topic: str, given: Iterator[InputRecord], rate: float | None,
          settings: dict[str, Any], total: int) -> dict[str, Any]:
    """Send all records. Raises ToolError if one was not acknowledged."""
    from pylog.client import Producer

    outcome = Outcome()
    count = byte_count = 0
    begun = time.monotonic()
    with Producer.from_settings(settings) as producer, session.out.progress("send", total or None,
                                                              "bytes") as done:
        for record in given:
            if outcome.error is not None:
                break
            length = len(record.value or b"") + len(record.key or b"")
            producer.send(topic, record.value, record.key, partition=record.partition,
                          timestamp=record.timestamp, headers=record.headers or None,
                          on_delivery=outcome)
            count += 1
            byte_count += length
            done(length + 1)
            if rate is not None:
                _pace(begun, count, rate)
        if outcome.error is None:
            producer.flush(session.timeout_s)
    return _reported(topic, outcome, count, byte_count, time.monotonic() - begun)


def _are_plain(asked: dict[str, Any], rate: float | None, settings: dict[str, Any]) -> bool:
    """Return True if no option needs single records, so that lines can be sent as columns."""
    return (asked["kind"] == "lines" and asked["key"] is None and not asked["headers"]
            and rate is None and not any(name in settings for name in ONE_BY_ONE))


def _plan(session: Session, asked: dict[str, Any], count: int | None) -> column_sender.Plan:
    stamp = asked["timestamp"]
    return column_sender.Plan((asked["key_separator"] or "").encode(), asked["tombstones"],
                        asked["partition"], moment(stamp, session.now_ms()) if stamp else None,
                              count)


def _send_lines(session: Session, topic: str, files: tuple[BinaryIO, ...], plan: column_sender.Plan,
                settings: dict[str, Any], total: int) -> dict[str, Any]:
    """Send lines as columns. Raises ToolError if a record was not acknowledged."""
    from pylog.client import Producer

    begun = time.monotonic()
    with Producer.from_settings(settings) as producer, session.out.progress("send", total or None,
                                                              "bytes") as done:
        sent = column_sender.send(producer, topic, files, plan, done, session.timeout_s)
    return _reported(topic, sent, sent.count, sent.bytes, time.monotonic() - begun)


def _reported(topic: str, outcome: Outcome | column_sender.Sent, count: int, byte_count: int,
              seconds: float) -> dict[str, Any]:
    """Return the output. Raises ToolError if a record failed."""
    if outcome.error is not None:
        raise ToolError(f"{outcome.acknowledged} of {count} records were acknowledged; then: "
                        f"{outcome.error}")
    return {"topic": topic, "records": count, "bytes": byte_count,
            "seconds": round(seconds, 6), "partitions": {
                number: {"records": row[0], "first_offset": row[1], "last_offset": row[2]}
                for number, row in sorted(outcome.partitions.items())}}


def _pace(begun: float, count: int, rate: float) -> None:
    ahead_s = count / rate - (time.monotonic() - begun)
    if ahead_s > RATE_STEP_S:
        time.sleep(ahead_s)


COMMANDS = {"produce": produce}
