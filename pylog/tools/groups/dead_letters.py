"""`pylog share look`, `redrive` and `purge`: the dead letters of share groups.

Owns: the consumers and the producer while a command runs.
Invariants: a record is redriven exactly once: the record and the progress of redrive are committed
  in one transaction; --dry-run, or a missing confirmation, sends and deletes nothing; letters of
  another group are deleted only with --with-others.
Source: KIP-1191 (dead-letter queues).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import ConfigResource, ResourceType
from pylog.client.types import TopicPartition
from pylog.protocol.counts import counted
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import GROUP, TOPIC, Tool, confirmed
from pylog.tools.cli.output import span
from pylog.tools.cli.session import Session, ToolError

PREFIX = "__dlq.errors."
SETTING = "errors.deadletterqueue.topic.name"
ALLOWS = "errors.deadletterqueue.group.enable"
POSITIONS = "pylog.redrive."  # Plus the group's name; stores the progress of redrive.
POLL_S = 0.25
BATCH = 500  # Records per transaction.
LOOKED = {"letter": "LETTER", "source": "RECORD", "deliveries": "DELIVERIES", "why": "WHY",
          "age_seconds": ("AGE", span), "key": "KEY", "value": "VALUE"}
REDRIVEN = {"letter": "LETTER", "source": "RECORD", "outcome": "OUTCOME"}
PURGED = {"topic": "TOPIC", "partition": "PARTITION", "start_offset": "START",
          "new_start_offset": "NEW START", "end_offset": "END", "records": "RECORDS"}
letters_from = click.option("--letters", "topic", type=TOPIC, metavar="TOPIC",
                            help="Dead-letter topic.  [default: the group's]")


class Letter(NamedTuple):
    """A dead letter. part, offset: the position of its original record. headers: the record's own.
    """

    record: Any
    part: TopicPartition
    offset: int
    deliveries: int | None
    why: str
    headers: list[tuple[str, bytes | None]]

    @property
    def location(self) -> str:
        return f"{self.record.topic}-{self.record.partition}@{self.record.offset}"

    @property
    def source(self) -> str:
        return f"{self.part.topic}-{self.part.partition}@{self.offset}"

    @property
    def has_copy(self) -> bool:
        return self.record.key is not None or self.record.value is not None


async def topic_of(admin: Admin, group: str) -> str | None:
    """Return the dead-letter topic of a group, None if it has none."""
    resource = ConfigResource(ResourceType.GROUP, group)
    entry = (await admin.describe_configs([resource]))[resource].get(SETTING)
    return (entry.value or None) if entry is not None else None


async def fault_of(admin: Admin, topic: str) -> str | None:
    """Return why a topic cannot receive dead letters according to its settings, else ""."""
    try:
        await cluster_queries.topics(admin.cluster, [topic])
    except cluster_queries.UnknownName:
        return f"there is no topic {topic}"
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entry = (await admin.describe_configs([resource]))[resource].get(ALLOWS)
    # A broker reports the setting only if it is set.
    return None if entry is not None and entry.value == "true" else \
        f"{topic} does not have {ALLOWS}=true"


def letter_of(record: Any, group: str) -> Letter | None:
    """Parse a record as a dead letter; None if it is not a letter of this group."""
    found = {name.removeprefix(PREFIX): (value or b"").decode("utf-8", "replace")
             for name, value in record.headers if name.startswith(PREFIX)}
    partition, offset = found.get("partition", ""), found.get("offset", "")
    if found.get("group") != group or "topic" not in found \
            or not partition.isdecimal() or not offset.isdecimal():
        return None
    count = found.get("delivery.count", "")
    return Letter(record, TopicPartition(found["topic"], int(partition)), int(offset),
                  int(count) if count.isdecimal() else None, found.get("message", ""),
                  [row for row in record.headers if not row[0].startswith(PREFIX)])


class Reader:
    """Reads the records of a dead-letter topic, up to its end offsets at construction."""

    def __init__(self, session: Session, group: str, topic: str | None):
        from pylog.client import Consumer

        name = topic or session.administer(lambda admin: topic_of(admin, group))
        if name is None:
            raise ToolError(f"{group} has no dead-letter topic ({SETTING}); --letters names one")
        self.group, self.topic = group, name
        self.parts = cluster_queries.partitions_of(
            session.run(lambda cluster: cluster_queries.topics(cluster, [name])))
        self.consumer = Consumer.from_settings(session.settings_of(
            "consumer", group_id=POSITIONS + group, enable_auto_commit=False,
            auto_offset_reset="earliest"))
        self.first = self.consumer.beginning_offsets(self.parts)
        self.last = self.consumer.end_offsets(self.parts)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.consumer.close()

    def done(self) -> dict[TopicPartition, int]:
        """Return the offsets at which redrive continues."""
        found = dict(self.first)
        for part, committed in self.consumer.committed(self.parts).items():
            if committed is not None:
                found[part] = max(found[part], committed.offset)
        return found

    def records(self, starts: dict[TopicPartition, int]) -> Iterator[Any]:
        """Yield all records from these offsets, each partition in order."""
        waiting = {part for part in self.parts if starts[part] < self.last[part]}
        self.consumer.assign(sorted(waiting))
        for part in waiting:
            self.consumer.seek(part, starts[part])
        while waiting:
            for record in self.consumer.poll(POLL_S):
                if record.offset < self.last[TopicPartition(record.topic, record.partition)]:
                    yield record
            waiting = {part for part in waiting
                       if self.consumer.position(part) < self.last[part]}

    def letters(self, starts: dict[TopicPartition, int]) -> Iterator[Letter]:
        for record in self.records(starts):
            letter = letter_of(record, self.group)
            if letter is not None:
                yield letter


# ---- look ---------------------------------------------------------------------------------------


@click.command(cls=Tool)
@click.argument("group", type=GROUP, metavar="GROUP")
@letters_from
@click.option("-n", "--count", type=click.IntRange(min=1), help="Show only the first N letters.")
@click.pass_obj
def look(session: Session, group: str, topic: str | None, count: int | None) -> None:
    """Show the dead letters of a share group: original record, reason, delivery count."""
    with Reader(session, group, topic) as reader:
        rows = []
        for letter in reader.letters(reader.first):
            rows.append(_looked(letter, session.now_ms()))
            if len(rows) == count:
                break
    fault = None if rows else session.administer(lambda admin: fault_of(admin, reader.topic))
    session.out.rows(rows, LOOKED, empty=f"{group} has no dead letters" + (
        f", none can be written: {fault}" if fault else ""))


def _looked(letter: Letter, now_ms: int) -> dict[str, Any]:
    return {"letter": letter.location, "source": letter.source, "topic": letter.part.topic,
            "partition": letter.part.partition, "offset": letter.offset,
            "deliveries": letter.deliveries, "why": letter.why,
            "age_seconds": max(0, now_ms - letter.record.timestamp) // 1000,
            "key": _text(letter.record.key), "value": _text(letter.record.value),
            "headers": {name: _text(value) for name, value in letter.headers}}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


# ---- redrive ------------------------------------------------------------------------------------


@click.command(cls=Tool)
@click.argument("group", type=GROUP, metavar="GROUP")
@letters_from
@click.option("--to", type=TOPIC, metavar="TOPIC",
              help="Target topic.  [default: the original topic]")
@click.option("--again", is_flag=True,
              help="Start at the first letter, including those already written back.")
@click.option("--dry-run", is_flag=True, help="Only show what would be written back.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def redrive(session: Session, group: str, topic: str | None, to: str | None, again: bool,
            dry_run: bool, yes: bool) -> None:
    """Write the records of dead letters back to their topic as new records, exactly once."""
    with Reader(session, group, topic) as reader:
        starts = reader.first if again else reader.done()
        work = Redrive(session, reader, to)
        count = sum(1 for _ in reader.letters(starts))
        if count and not dry_run:
            confirmed(f"Write {counted(count, 'record')} back?", yes)
        rows = work.preview(starts) if dry_run else work.run(again) if count else []
    if session.out.as_json:
        session.out.document({"executed": not dry_run, "letters": rows})
    else:
        session.out.table(rows, REDRIVEN, empty=f"{group} has no new dead letters")
    lost = sum(1 for row in rows if row["outcome"] == "lost")
    if lost:
        raise ToolError(f"{counted(lost, 'record is', 'records are')} in no dead letter and no "
                        f"longer in the topic")


class Redrive:
    """One run of redrive, in transactions of BATCH letters."""

    def __init__(self, session: Session, reader: Reader, to: str | None):
        self._session = session
        self._reader = reader
        self._to = to

    def preview(self, starts: dict[TopicPartition, int]) -> list[dict[str, Any]]:
        return [self._row(letter, "would return" if letter.has_copy else
                          "would be read from its topic") for letter in
                self._reader.letters(starts)]

    def run(self, again: bool) -> list[dict[str, Any]]:
        """Write the letters back. again: also those that were written back before."""
        from pylog.client import Producer

        rows: list[dict[str, Any]] = []
        settings = self._session.settings_of(
            "producer", transactional_id=POSITIONS + self._reader.group)
        with Originals(self._session) as originals, Producer.from_settings(settings) as producer:
            producer.init_transactions()
            # Read the progress after the fence: another redrive may have run until now.
            starts = self._reader.first if again else self._reader.done()
            batch: list[Any] = []
            for record in self._reader.records(starts):
                batch.append(record)
                if len(batch) == BATCH:
                    rows += self._transaction(producer, originals, batch)
                    batch = []
            if batch:
                rows += self._transaction(producer, originals, batch)
        return rows

    def _transaction(self, producer: Any, originals: Originals,
                     batch: list[Any]) -> list[dict[str, Any]]:
        """Send the records and commit the progress in one transaction."""
        rows = []
        done: dict[TopicPartition, int] = {}
        producer.begin_transaction()
        for record in batch:
            done[TopicPartition(record.topic, record.partition)] = record.offset + 1
            letter = letter_of(record, self._reader.group)
            if letter is not None:
                rows.append(self._send(producer, originals, letter))
        producer.send_offsets_to_transaction(done, POSITIONS + self._reader.group)
        producer.commit_transaction()
        return rows

    def _send(self, producer: Any, originals: Originals, letter: Letter) -> dict[str, Any]:
        record, headers = letter.record, letter.headers
        if not letter.has_copy:
            record = originals.find(letter.part, letter.offset)
            if record is None:
                return self._row(letter, "lost")
            headers = list(record.headers)
        topic, partition = self._to, None
        if topic is None:
            topic, partition = letter.part
        producer.send(topic, record.value, key=record.key, partition=partition, headers=headers)
        return self._row(letter, "returned")

    def _row(self, letter: Letter, outcome: str) -> dict[str, Any]:
        return {"letter": letter.location, "source": letter.source,
                "to": self._to or letter.part.topic, "outcome": outcome}


class Originals:
    """Reads the original records, for letters that contain no copy."""

    def __init__(self, session: Session):
        from pylog.client import Consumer

        self._consumer = Consumer.from_settings(
            session.settings_of("consumer", enable_auto_commit=False))
        self._timeout_s = session.timeout_s

    def __enter__(self) -> Originals:
        return self

    def __exit__(self, *exception: object) -> None:
        self._consumer.close()

    def find(self, part: TopicPartition, offset: int) -> Any:
        """Return the record, None if it no longer exists."""
        consumer = self._consumer
        if offset < consumer.beginning_offsets([part])[part]:
            return None
        last = consumer.end_offsets([part])[part]
        consumer.assign([part])
        consumer.seek(part, offset)
        while consumer.position(part) < min(offset + 1, last):
            for record in consumer.poll(POLL_S, 1):
                return record if record.offset == offset else None
        return None


# ---- purge --------------------------------------------------------------------------------------


@click.command(cls=Tool)
@click.argument("group", type=GROUP, metavar="GROUP")
@letters_from
@click.option("--redriven", is_flag=True, help="Only letters that `redrive` has processed.")
@click.option("--with-others", is_flag=True, help="Include letters of other groups.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def purge(session: Session, group: str, topic: str | None, redriven: bool, with_others: bool,
          dry_run: bool, yes: bool) -> None:
    """Delete the dead letters of a share group, up to the first letter of another group."""
    with Reader(session, group, topic) as reader:
        upto = reader.done() if redriven else dict(reader.last)
        if not with_others:
            # Stop before letters of other groups unless --with-others is given.
            for record in reader.records(reader.first):
                if letter_of(record, group) is None:
                    part = TopicPartition(record.topic, record.partition)
                    upto[part] = min(upto[part], record.offset)
        rows = [{"topic": part.topic, "partition": part.partition,
                 "start_offset": reader.first[part], "new_start_offset": upto[part],
                 "end_offset": reader.last[part], "records": upto[part] - reader.first[part]}
                for part in reader.parts]
        count = sum(upto[part] - reader.first[part] for part in reader.parts)
    if session.out.as_json:
        session.out.document({"executed": not dry_run, "partitions": rows})
    else:
        session.out.table(rows, PURGED)
    if dry_run or not count:
        return
    confirmed(f"Delete {count} dead letters?", yes)
    session.administer(lambda admin: admin.delete_records({
        part: offset for part, offset in upto.items() if offset > reader.first[part]},
        session.timeout_s))
    session.out.line(f"{count} dead letters deleted")
