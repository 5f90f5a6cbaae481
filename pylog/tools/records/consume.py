"""`pylog consume`: print records of topics.

Owns: the consumer while the command runs.
Invariants: without --follow the command stops at the partitions' end offsets at its start; with a
  group, exactly the printed records are committed.
Source: kcat and Kafka's console consumer, for the options.
"""

from __future__ import annotations

import bisect
import fnmatch
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from pylog.client.types import TopicPartition
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import GROUP, TOPIC, Tool, registry_option
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.cli.time_arguments import moment
from pylog.tools.records.record_format import FORMATS, Shape, is_template

POLL_S = 0.25
BATCH = 10_000
COLUMN_ROWS = 100_000


class Kind(click.Choice[str]):
    """One of the formats, or a template."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if is_template(value) else super().convert(value, param, ctx)


@click.command(cls=Tool)
@click.argument("topics", nargs=-1, required=True, type=TOPIC, metavar="TOPIC...")
@click.option("-s", "--from", "start", metavar="WHERE", help="beginning, end, an offset, -N for "
              "the last N of each partition, or a time: 2026-11-01T10:00, -10m, @seconds.  "
              "[default: beginning; with --follow: end]")
@click.option("-u", "--until", metavar="WHERE", help="Stop before an offset or a time.")
@click.option("-p", "--partition", "partitions", metavar="N[,N]", help="Only these partitions.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Number of records.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new records at the end.")
@click.option("-g", "--group", type=GROUP,
              help="Consume as a member of this group, from its offsets.")
@click.option("-F", "--format", "kind", type=Kind(FORMATS), default="raw", metavar="FORMAT",
              show_default=True, help="raw: unchanged values, escaped on a terminal; json: a "
              "document for each record, with its value as JSON; avro: the same, with a registry; "
              "table: columns; or a template like kcat's -f, such as '%t [%p] %o: %k %s\\n'.")
@click.option("-k", "--keys", is_flag=True,
              help="With raw: print the key and a tab before the value.")
@click.option("-H", "--headers", is_flag=True, help="With raw and table: print the headers.")
@registry_option
@click.option("--read-committed", is_flag=True,
              help="Skip records of open or aborted transactions.")
@click.pass_obj
def consume(session: Session, topics: tuple[str, ...], kind: str, keys: bool, headers: bool,
            registry: str | None, **asked: Any) -> None:
    """Print records of topics (names or patterns with * and ? as in a shell)."""
    if asked["group"] and (asked["start"] not in (None, "beginning", "end")
                           or asked["partitions"] or asked["until"]):
        raise click.UsageError("a group has its own partitions and offsets; with --group, --from "
                               "can only be beginning or end, and applies to partitions without a "
                               "committed offset")
    parts = session.run(lambda cluster: _parts(cluster, topics, asked["partitions"]))
    shape = Shape(session.out, kind, keys, headers, registry)
    if asked["follow"] or asked["group"]:
        session.log_warnings()
    reader = Reader(session, parts, asked)
    with reader.consumer:
        reader.begin(topics)
        by_columns = shape.takes_columns and reader.until_ms is None
        for found in reader.columns(shape.needs_headers) if by_columns else reader.batches():
            if by_columns:
                shape.print_columns(*found)
            else:
                shape.print(found)
            if asked["group"]:
                session.out.flush()  # Commit only records that are written.
                reader.consumer.commit()


async def _parts(cluster: Any, topics: tuple[str, ...], numbers: str | None
                 ) -> list[TopicPartition]:
    parts = cluster_queries.partitions_of(await cluster_queries.topics(cluster, topics))
    if numbers is None:
        return parts
    if not re.fullmatch(r"\d+(,\d+)*", numbers):
        raise click.BadParameter(f"{numbers!r}: expected numbers separated by commas")
    wanted = {int(number) for number in numbers.split(",")}
    found = [part for part in parts if part.partition in wanted]
    missing = wanted - {part.partition for part in found}
    if missing:
        raise ToolError(f"no such partition: {min(missing)} of {', '.join(topics)}")
    return found


class Reader:
    """Owns the consumer, its start positions and its stop offsets."""

    def __init__(self, session: Session, parts: list[TopicPartition], asked: dict[str, Any]):
        from pylog.client import Consumer

        self.session, self.parts, self.asked = session, parts, asked
        self.left = asked["count"]
        self.stops: dict[TopicPartition, int] = {}
        self.until_ms: int | None = None
        group = asked["group"]
        start = asked["start"] or ("end" if asked["follow"] else "beginning")
        self.start = start
        own = {"group_id": group, "enable_auto_commit": False, "max_poll_records": BATCH,
               "auto_offset_reset": "latest" if start == "end" else "earliest"}
        if asked["read_committed"]:
            own["isolation_level"] = "read_committed"
        values = session.settings_of("consumer", **{k: v for k, v in own.items() if v is not None})
        if group is None:
            values.pop("group.id", None)
        self.consumer = Consumer.from_settings(values)

    def begin(self, topics: tuple[str, ...]) -> None:
        """Subscribe, or assign the partitions and set the start positions."""
        consumer = self.consumer
        if self.asked["group"]:
            if any(map(cluster_queries.is_pattern, topics)):
                # The pattern also matches topics that are created later.
                consumer.subscribe(pattern=re.compile("|".join(map(fnmatch.translate, topics))))
            else:
                consumer.subscribe(list(topics))
            if not self.asked["follow"]:
                self.stops = dict(consumer.end_offsets(self.parts))
            return
        consumer.assign(self.parts)
        first, last = consumer.beginning_offsets(self.parts), consumer.end_offsets(self.parts)
        for part, offset in self._begin_offsets(first, last).items():
            consumer.seek(part, offset)
        if not self.asked["follow"]:
            self.stops = dict(last)
        self._set_until(last)

    def _begin_offsets(self, first: dict[TopicPartition, int], last: dict[TopicPartition, int]
                       ) -> dict[TopicPartition, int]:
        start = self.start
        if start == "beginning":
            return first
        if start == "end":
            return last
        if start.isdigit():
            return {part: min(max(int(start), first[part]), last[part]) for part in self.parts}
        if re.fullmatch(r"-\d+", start):
            return {part: max(first[part], last[part] + int(start)) for part in self.parts}
        when = moment(start.removeprefix("@"), self.session.now_ms())
        return self._at(when, last)

    def _at(self, when: int, last: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = self.consumer.offsets_for_times(dict.fromkeys(self.parts, when))
        return {part: last[part] if (first := found.get(part)) is None else first.offset
                for part in self.parts}

    def _set_until(self, last: dict[TopicPartition, int]) -> None:
        until = self.asked["until"]
        if until is None or until == "end":
            return
        if until.isdigit():
            self.stops = {part: min(int(until), self.stops.get(part, int(until)))
                          for part in self.parts}
            return
        self.until_ms = moment(until.removeprefix("@"), self.session.now_ms())
        if not self.asked["follow"]:
            self.stops = self._at(self.until_ms, last)

    def batches(self) -> Iterator[list[Any]]:
        """Yield lists of records up to the stop offsets."""
        def take(waiting: set[TopicPartition]) -> tuple[list[Any], int]:
            found = self._wanted(self.consumer.poll(POLL_S, min(BATCH, self.left or BATCH)),
                                 waiting)
            return found, len(found)

        return self._rounds(take)

    def columns(self, headers: bool) -> Iterator[Any]:
        """Like batches(), as (native columns, [(first row, end row, partition)])."""
        def take(waiting: set[TopicPartition]) -> tuple[Any, int]:
            found = self.consumer.poll_columns(POLL_S, min(COLUMN_ROWS, self.left or COLUMN_ROWS),
                                               headers)
            if found is None:
                return None, 0
            offset_ranges = self._offset_ranges(*found, waiting)
            return (found[0], offset_ranges), sum(stop - start for start, stop, _ in offset_ranges)

        return self._rounds(take)

    def _rounds(self, take: Callable[[set[TopicPartition]], tuple[Any, int]]) -> Iterator[Any]:
        """Call take(unfinished partitions) and yield its results with a count above 0."""
        waiting = {part for part, stop in self.stops.items() if not self._passed(part, stop)}
        if self.stops and not waiting and not self.asked["follow"]:
            return
        begun = time.monotonic()
        while self.left is None or self.left > 0:
            found, count = take(waiting)
            if count:
                begun = time.monotonic()
                if self.left is not None:
                    self.left -= count
                yield found
            elif self.stops:
                waiting = {part for part in waiting if not self._passed(part, self.stops[part])}
                if not self.asked["follow"] \
                        and time.monotonic() - begun > self.session.timeout_s:
                    self._check_silent(waiting)
                    return  # The other partitions belong to other members.
            if self.stops and not waiting:
                return

    def _check_silent(self, waiting: set[TopicPartition]) -> None:
        """Raise ToolError if partitions of this consumer returned no records before their stop
        offset.
        """
        own = sorted(waiting & set(self.consumer.assignment()))
        if own:
            raise ToolError(
                f"no records for {self.session.timeout_s:g} s of {', '.join(map(str, own))}, "
                f"which did not reach the end; check its leader with pylog cluster explain")

    def _offset_ranges(self, columns: Any, sources: list[TopicPartition],
                       waiting: set[TopicPartition]) -> list[tuple[int, int, TopicPartition]]:
        """Return the rows before the stop offsets; pause partitions that reached theirs."""
        offsets, found, at = memoryview(columns.offsets).cast("q"), [], 0
        for source, count in columns.runs:
            part, end = sources[source], at + count
            stop = self.stops.get(part)
            if stop is not None and offsets[end - 1] >= stop - 1:
                waiting.discard(part)
                if not self.asked["group"]:
                    end = bisect.bisect_left(offsets, stop, at, end)
            if end > at:
                found.append((at, end, part))
            at += count
        return found

    def _passed(self, part: TopicPartition, stop: int) -> bool:
        if self.asked["group"] and part not in self.consumer.assignment():
            return False
        return self.consumer.position(part) >= stop

    def _wanted(self, found: list[Any], waiting: set[TopicPartition]) -> list[Any]:
        """Return the records before the stop offsets; pause partitions that reached theirs."""
        if not self.stops and self.until_ms is None:
            return found
        wanted = []
        for record in found:
            part = TopicPartition(record.topic, record.partition)
            stop = self.stops.get(part)
            if stop is not None and record.offset >= stop - 1:
                waiting.discard(part)
            elif stop is None and self.until_ms is not None and record.timestamp >= self.until_ms:
                stop = self._end(waiting)[part]
            if stop is None or record.offset < stop or self.asked["group"]:
                wanted.append(record)
        return wanted

    def _end(self, waiting: set[TopicPartition]) -> dict[TopicPartition, int]:
        """The stop time has passed: set the stop offset of each partition, which may be in the
        future.
        """
        assert self.until_ms is not None
        self.stops = self._at(self.until_ms, dict(self.consumer.end_offsets(self.parts)))
        waiting |= {part for part, stop in self.stops.items() if not self._passed(part, stop)}
        return self.stops


COMMANDS = {"consume": consume}
