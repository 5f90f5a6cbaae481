"""A range of a topic as a lazy Arrow reader, for pandas, Polars, DuckDB and pyarrow.dataset.

Owns: each reader's consumer, from its first batch until the last, or until the reader is dropped.
Invariants: the range [start, end) of each partition is fixed when scan() is called; memory is
  bounded by queued.max.messages.kbytes plus one batch; rows of a partition are in offset order,
  partitions in order of arrival; an offset is skipped only if the broker deleted its record, and a
  warning is logged; a scan of a deleted topic raises; a scan raises if the log lost its end in an
  unclean leader election.
Source: KIP-33, KIP-79 (offsets by time); Arrow's stream interface.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Generator, Iterable
from typing import Any

from pylog.client.arguments import several, whole
from pylog.client.columns.arrow import COLUMNS, ordered, schema
from pylog.client.background_loop import Driver
from pylog.client.consumer.consumer import Consumer
from pylog.client.errors import (
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from pylog.client.extras import require
from pylog.client.types import TopicPartition
from pylog.protocol.codec import ZERO_UUID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Unpack

    import pyarrow as pa

    from pylog.client.interfaces import ColumnName, Time
    from pylog.client.options import ConsumerConfig, ConsumerOptions

BATCH_RECORDS_MAX = 100_000
POLL_S = 1.0
SHORT_POLLS = 5  # Consecutive empty polls: a new leader may briefly report a lower end.
MISSING_S = 5.0  # Every broker's metadata has a new topic within this time.
_NEEDED: tuple[ColumnName, ...] = ("partition", "offset")
_LOG = logging.getLogger("pylog.client")


def scan(topic: str, *, since: Time = None, until: Time = None,
         columns: Iterable[ColumnName] | None = None, partitions: Iterable[int] | None = None,
         batch_records_max: int = BATCH_RECORDS_MAX, config: ConsumerConfig | None = None,
         **more: Unpack[ConsumerOptions]) -> pa.RecordBatchReader:
    """Return a pyarrow.RecordBatchReader over the topic's current records, or a time range of them.

    since, until: ms since the epoch, datetime (naive: local time), date, ISO text, or timedelta
    before now. A partition's range begins at its first record not older than `since` and ends
    before its first record not older than `until`, or at its end. columns: topic, partition,
    offset, timestamp, key, value, headers; all by default. config, more: a Consumer's settings
    (bootstrap_servers="…"). Nothing is read before the first batch is requested. This call and each
    batch raise KafkaError: UnknownTopicOrPartitionError if the topic is deleted during the scan,
    LogTruncationError if the log lost records before the scan's end. Records that retention deletes
    before they are read are skipped, with a warning in the log.
    """
    arrow = require("scan", "numpy", "pyarrow")
    names, batches = prepared(topic, since=since, until=until, columns=columns,
                              partitions=partitions, batch_records_max=batch_records_max,
                              config=config, **more)
    return arrow.RecordBatchReader.from_batches(schema(names), batches)


def prepared(topic: str, *, since: Time, until: Time, columns: Iterable[ColumnName] | None,
             partitions: Iterable[int] | None, batch_records_max: int,
             config: ConsumerConfig | None, **more: Unpack[ConsumerOptions]
             ) -> tuple[list[ColumnName], Generator[pa.RecordBatch, None, None]]:
    """Return (columns, batches) of scan(). Closing the generator closes its consumer."""
    require("scan", "numpy", "pyarrow")
    names = list(COLUMNS) if columns is None else ordered(columns)
    settings: Any = {**(config or {}),
                     **{name.replace("_", "."): given for name, given in more.items()}}
    settings.setdefault("enable.auto.commit", False)
    settings.setdefault("allow.auto.create.topics", False)  # Reading must not create a topic.
    with Consumer(settings) as consumer:
        found = offset_ranges(consumer, topic, partitions, milliseconds(since), milliseconds(until))
        topic_id = _topic_id(consumer, topic)
    # A reset would skip records, or read those of another topic.
    settings["auto.offset.reset"] = "none"
    return names, _batches(settings, found, names, batch_records_max, topic_id)


def milliseconds(given: Time) -> int | None:
    """Convert a time to ms since the epoch."""
    if given is None:
        return None
    if isinstance(given, str):
        given = datetime.datetime.fromisoformat(given)
    if isinstance(given, datetime.timedelta):
        return round(time.time() * 1000 - given.total_seconds() * 1000)
    if isinstance(given, datetime.datetime):
        return round(given.timestamp() * 1000)
    if isinstance(given, datetime.date):
        return round(datetime.datetime(given.year, given.month, given.day).timestamp() * 1000)
    return int(given)


def offset_ranges(consumer: Consumer[Any, Any], topic: str, partitions: Iterable[int] | None,
                  since_ms: int | None, until_ms: int | None
                  ) -> dict[TopicPartition, tuple[int, int]]:
    """Return [start, end) of each partition that has records to read."""
    known = _partitions(consumer, topic)
    wanted = known if partitions is None else [
        whole("a partition", number) for number in several("partitions", partitions)]
    if set(wanted) - set(known):
        raise UnknownTopicOrPartitionError(f"{topic} has no partitions {set(wanted) - set(known)}")
    parts = [TopicPartition(topic, number) for number in wanted]
    starts, ends = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
    if since_ms is not None:
        found = consumer.offsets_for_times(dict.fromkeys(parts, since_ms))
        starts = {tp: ends[tp] if (first := found[tp]) is None else first.offset for tp in parts}
    if until_ms is not None:
        found = consumer.offsets_for_times(dict.fromkeys(parts, until_ms))
        ends = {tp: ends[tp] if (first := found[tp]) is None else min(ends[tp], first.offset)
                for tp in parts}
    return {tp: (starts[tp], ends[tp]) for tp in parts if starts[tp] < ends[tp]}


def _partitions(consumer: Consumer[Any, Any], topic: str) -> list[int]:
    """Return the topic's partitions. Raises UnknownTopicOrPartitionError."""
    try:
        known = consumer.partitions_for(topic, MISSING_S)
    except KafkaTimeoutError as late:
        if isinstance(late.__cause__, UnknownTopicOrPartitionError):
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}") from None
        raise
    if not known:
        raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
    return known


def _topic_id(consumer: Consumer[Any, Any], topic: str) -> bytes:
    """Return the topic id in this consumer's metadata; zero if the broker has no topic ids."""
    return consumer._core.cluster.metadata.topic_id(topic)


def _batches(settings: Any, found: dict[TopicPartition, tuple[int, int]],
             names: list[ColumnName], records_max: int,
             topic_id: bytes) -> Generator[Any, None, None]:
    if not found:
        return
    left = {tp: end for tp, (_, end) in found.items()}
    topic = next(iter(left)).topic
    consumer = Consumer(settings)
    clients_thread = Driver.shared().thread  # Raises at interpreter shutdown, so not below.
    short_polls = 0
    try:
        consumer.assign(list(left))
        for tp, (start, _) in found.items():
            consumer.seek(tp, start)
        while left:
            try:
                batch = consumer.poll_arrow(POLL_S, records_max, {*names, *_NEEDED})
            except OffsetOutOfRangeError as failure:
                _check_topic(consumer, topic, topic_id, True)
                _skip_deleted(consumer, left, failure)
                continue
            _check_topic(consumer, topic, topic_id, batch.num_rows == 0)
            if batch.num_rows:
                pieces, ended = _inside(batch, topic, left)
            else:
                # The rest may be markers or gaps: positions pass those without rows.
                pieces, ended = [], [tp for tp, end in left.items() if consumer.position(tp) >= end]
            for tp in ended:
                del left[tp]
            cut = {} if batch.num_rows else _cut(consumer, left)
            short_polls = short_polls + 1 if cut else 0
            if short_polls >= SHORT_POLLS:
                raise _truncated(cut, left)  # The log lost the end of the scan.
            if ended and left:
                consumer.pause(*ended)
            for piece in pieces:
                yield piece.select(names)
    finally:
        if threading.current_thread() is clients_thread:
            # The reader was garbage-collected on the clients' thread, which cannot wait for itself.
            threading.Thread(target=consumer.close, name="pylog-scan-close").start()
        else:
            consumer.close()


def _cut(consumer: Consumer[Any, Any], left: dict[TopicPartition, int]
         ) -> dict[TopicPartition, int]:
    """Return the end offsets of logs that end before the scan does."""
    return {tp: end for tp, end in consumer.end_offsets(list(left)).items() if end < left[tp]}


def _truncated(cut: dict[TopicPartition, int],
               left: dict[TopicPartition, int]) -> LogTruncationError:
    tp, end = next(iter(cut.items()))
    made = LogTruncationError(
        f"{tp}: the log ends at {end}, before the end of the scan, {left[tp]}: an unclean leader "
        "election has lost records", remedy="scan again to read what the log holds now")
    made.partition, made.offset = tp, end
    return made


def _check_topic(consumer: Consumer[Any, Any], topic: str, topic_id: bytes,
                 is_silent: bool) -> None:
    """Raise UnknownTopicOrPartitionError if the topic was deleted, or deleted and re-created."""
    if is_silent:
        _partitions(consumer, topic)
    now = _topic_id(consumer, topic)
    if now not in (topic_id, ZERO_UUID):
        raise UnknownTopicOrPartitionError(f"{topic} was deleted and created again during the scan")


def _skip_deleted(consumer: Consumer[Any, Any], left: dict[TopicPartition, int],
                  failure: KafkaError) -> None:
    """Continue after records that the brokers have deleted, and log them."""
    starts, is_behind = consumer.beginning_offsets(list(left)), False
    for tp, end in left.items():
        position = consumer.position(tp)
        if position < starts[tp]:
            _LOG.warning("scan of %s: offsets %d to %d were deleted before they were read", tp,
                         position, min(starts[tp], end) - 1)
            consumer.seek(tp, starts[tp])
            is_behind = True
    if not is_behind:
        raise failure


def _inside(batch: Any, topic: str,
            left: dict[TopicPartition, int]) -> tuple[list[Any], list[TopicPartition]]:
    """Return (rows before their partition's end, partitions that reached their end)."""
    import numpy as np

    partitions = batch.column("partition").to_numpy()
    offsets = batch.column("offset").to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    pieces, ended, first = [], [], 0
    for start, stop in zip(cuts, cuts[1:]):
        tp = TopicPartition(topic, int(partitions[start]))
        end = left.get(tp, 0)
        if offsets[stop - 1] < end - 1:
            continue
        inside = start + int(np.searchsorted(offsets[start:stop], end))
        if tp in left and tp not in ended:
            ended.append(tp)
        if inside < stop:
            pieces.append(batch.slice(first, inside - first))
            first = stop
    pieces.append(batch.slice(first))
    return [piece for piece in pieces if piece.num_rows], ended
