"""The blocking consumer: records, Arrow or NumPy.

Owns: the polling thread's side. core.Consuming does the work, on the shared event loop.
Invariants: one thread at a time, except for `wakeup` and `close`; a poll that finds records waiting
  does not use the event loop; callbacks run on the polling thread; positions move only past records
  that a poll returns: if it raises, or is interrupted at any point, they do not change.
Source: Kafka's consumer; kafka-python and confluent-kafka for the Python API.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Generic

from pylog._native.client.columns import Columns, Record
from pylog.client.callbacks import intercepted
from pylog.client.consumer.core import Consuming
from pylog.client import shutdown
from pylog.client.background_loop import Bell, Driver, SingleUser, WorkRunner
from pylog.client.errors import ClosedError, ConcurrentUseError
from pylog.client.extras import require
from pylog.client.consumer.rebalance_listener import listener_of, weakly
from pylog.client.consumer.record_iterator import check_batches
from pylog.client.consumer.subscription_state import NO_POLL
from pylog.client.generics import K, V
from pylog.client.network.metrics import Metrics
from pylog.client.types import (
    EARLIEST, LATEST, GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, Offsets, TopicPartition,
)
from pylog.client.config.configured import Configured, given
from pylog.client.config.settings import CONSUMER, Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import Self, Unpack

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from pylog.client.consumer.rebalance_listener import RebalanceListener
    from pylog.client.interfaces import (
        ColumnName, CommitCallback, Deserializes, RebalanceCallback,
    )
    from pylog.client.options import ConsumerConfig, ConsumerOptions

CLOSE_S = 30.0
COLUMN_RECORDS_MAX = 100_000
COLUMN_BYTES_MAX = 8 << 20
ALL_COLUMNS: tuple[ColumnName, ...] = (
    "topic", "partition", "offset", "timestamp", "key", "value", "headers")
# Returns a poll's result, and the first offset of each partition not included in it, if any.
Make = Callable[[Any], tuple[Any, Mapping[TopicPartition, int] | None]]


class Consumer(Configured, Generic[K, V]):
    """Read topics: `with Consumer(bootstrap_servers="…", group_id="g") as consumer: …`.

    Settings have Kafka's names: pass a dict with dots, or keywords with underscores. A call while
    another thread is in a call raises ConcurrentUseError, except for `wakeup` and `close`.
    """

    def __init__(self, config: ConsumerConfig | None = None, /, *,
                 key_deserializer: Deserializes[K] | None = None,
                 value_deserializer: Deserializes[V] | None = None,
                 **more: Unpack[ConsumerOptions]):
        self.settings = Settings(CONSUMER, config, **given(
            more, key_deserializer=key_deserializer, value_deserializer=value_deserializer))
        self._driver = Driver.shared()
        self._runner = WorkRunner(self._driver)
        self._user = SingleUser("consumer")
        self._event = Bell()
        self._records_max = self.settings["max.poll.records"]
        self._core: Consuming = self._runner.run(self._make())
        self._listener: Any = None
        self._interceptors = [interceptor for interceptor in self._core.interceptors
                              if hasattr(interceptor, "on_consume")]

    async def _make(self) -> Consuming:
        return await Consuming(self.settings, self._runner.call, self._event.set).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            shutdown.dropped(self, core)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run work on the event loop; only one thread at a time."""
        try:
            with self._user:
                return self._runner.run(work)
        except ConcurrentUseError:
            work.close()
            raise

    # Reading

    def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record[K, V]]:
        """Return up to max_records (default max.poll.records) records; empty after `timeout`
        seconds.

        Also joins the group, runs callbacks, and commits if that is automatic. Raises KafkaError.
        """
        found = self._records(timeout, self._records_max if max_records is None else max_records)
        # In each poll, no call follows this: a signal handler runs after calls.
        self._core.collector.undelivered_poll = NO_POLL
        return found

    def _records(self, timeout: float, most: int) -> list[Record[K, V]]:
        collector = self._core.collector
        found: list[Record[K, V]] | None = self._poll(
            timeout, lambda: collector.records(most), self._intercepted)
        return found or []

    def _intercepted(self, found: list[Record[K, V]]) -> tuple[list[Record[K, V]], None]:
        return intercepted(self._interceptors, found), None

    def poll_arrow(self, timeout: float = 0.0, max_records: int = COLUMN_RECORDS_MAX,
                   columns: Iterable[ColumnName] = ALL_COLUMNS,
                   max_bytes: int = COLUMN_BYTES_MAX) -> pa.RecordBatch:
        """Return fetched records as a pyarrow.RecordBatch; no rows after `timeout` seconds.

        Columns: topic (dictionary), partition, offset, timestamp (ms), key, value, headers, or
        those in `columns`. max_bytes limits the values, and the keys. Raises KafkaError.
        """
        from pylog.client.columns import arrow

        require("poll_arrow", "pyarrow")
        names, known = arrow.ordered(columns), self._core.subscription.known
        found = self._columns(timeout, max_records, "headers" in names, max_bytes,
                              lambda native: (arrow.record_batch(native, known, names), None))
        if found is None:
            found = empty_batch(names)
        self._core.collector.undelivered_poll = NO_POLL
        return found

    def poll_numpy(self, timeout: float = 0.0, max_records: int = COLUMN_RECORDS_MAX,
                   columns: Iterable[ColumnName] = ALL_COLUMNS,
                   value_dtype: npt.DTypeLike | None = None,
                   key_dtype: npt.DTypeLike | None = None, max_bytes: int = COLUMN_BYTES_MAX
                   ) -> dict[str, np.ndarray]:
        """Return NumPy arrays by column name; {} after `timeout` seconds without a record.

        With a dtype of 1 to 8 bytes ("<i8", ">f4"), keys or values become one plain array.
        Otherwise they are `value_offsets` and `value_data` as in Arrow. Raises KafkaError,
        ValueError, and RecordDeserializationError if a record's length differs from the dtype's.
        """
        from pylog.client.columns import arrow

        require("poll_numpy", "numpy")
        names, known = arrow.ordered(columns), self._core.subscription.known
        found: dict[str, np.ndarray] = self._columns(
            timeout, max_records, False, max_bytes,
            lambda native: arrow.numpy_rows(native, known, names, value_dtype, key_dtype)) or {}
        self._core.collector.undelivered_poll = NO_POLL
        return found

    def poll_columns(self, timeout: float = 0.0, max_records: int = COLUMN_RECORDS_MAX,
                     headers: bool = True, max_bytes: int = COLUMN_BYTES_MAX
                     ) -> tuple[Columns, list[TopicPartition]] | None:
        """Return native columns, without pyarrow and NumPy, and the partition of each source
        number. Returns None after `timeout` seconds without a record. Raises KafkaError.
        """
        known = self._core.subscription.known
        found: tuple[Columns, list[TopicPartition]] | None = self._columns(
            timeout, max_records, headers, max_bytes, lambda native: ((native, known), None))
        self._core.collector.undelivered_poll = NO_POLL
        return found

    def _columns(self, timeout: float, max_records: int, headers: bool, max_bytes: int,
                 make: Make) -> Any:
        collector = self._core.collector
        return self._poll(
            timeout, lambda: collector.columns(max_records, headers, max_bytes), make)

    def _poll(self, timeout: float, take: Callable[[], Any], make: Make) -> Any:
        """Poll with `take` and convert the result with `make`. Returns None after `timeout`
        seconds.

        The caller must reset collector.undelivered_poll when it returns the result.
        """
        with self._user:
            return self._polled(timeout, take, make)

    def _polled(self, timeout: float, take: Callable[[], Any], make: Make) -> Any:
        core, event = self._core, self._event
        self._driver.check_running()  # A forked child has copies of the parent's fetched records.
        if core.closed:
            raise ClosedError("the consumer is closed")
        core.check_topics()
        if core.has_undelivered:
            self._runner.run(core.put_back())
        end_s = None
        core.polling = True
        try:
            while True:
                event.clear()
                due = core.polled()
                if due is not None:
                    self._driver.post(core.auto_commit, due)
                if core.has_pending_work:
                    left_s = timeout if end_s is None else max(0.0, end_s - time.monotonic())
                    end_s = time.monotonic() + left_s if end_s is None else end_s
                    self._runner.run(core.run_pending_work(left_s))
                found = self._take_and_convert(take, make)
                if core.fetcher.starved:
                    self._driver.post(core.fetcher.poke)
                if found is not None:
                    return found
                now_s = time.monotonic()
                if end_s is None:
                    end_s = now_s + timeout
                if now_s >= end_s:
                    return None
                event.wait(end_s - now_s)
        finally:
            core.polling = False

    def _take_and_convert(self, take: Callable[[], Any], make: Make) -> Any:
        """Take and convert records. The next poll takes them again if this one does not return."""
        collector = self._core.collector
        collector.undelivered_poll = collector.poll
        found = take()
        if not found:
            return None
        made, unread = make(found)
        if unread:
            self._runner.run(self._core.restore_undelivered(unread))
        return made

    def __iter__(self) -> Iterator[Record[K, V]]:
        """Iterate over records endlessly. A commit includes all records yielded so far, also the
        last.

        After a break, the next iteration or poll continues with the remaining records.
        """
        collector = self._core.collector
        while True:
            record = self._core.next_record()
            if record is None:
                self._core.iterate(self._records(1.0, self._records_max))
                collector.undelivered_poll = NO_POLL
            else:
                collector.undelivered_poll = NO_POLL
                yield record

    def batches(self, size: int, timeout: float) -> Iterator[list[Record[K, V]]]:
        """Yield lists of up to `size` records, endlessly; commit between them.

        Each list is the result of one poll, so that no record is lost if a poll raises, and no
        commit includes a record before you have it. To get longer lists from a slow topic, let the
        broker wait: fetch.min.bytes and fetch.max.wait.ms. If nothing arrives within `timeout`
        seconds, the wait begins again. Raises ValueError if size is below 1 or timeout is not
        above 0.
        """
        check_batches(size, timeout)
        while True:
            if found := self.poll(timeout, size):
                yield found

    def wakeup(self) -> None:
        """Make the waiting poll, or the next one, raise WakeupError. Callable from any thread."""
        self._core.woken = True
        self._driver.post(self._core.notify)

    def metrics(self) -> Metrics:
        """Return metrics as {group: {name: value}} with Kafka's names, including a group per topic.
        """
        return self._core.metrics()

    # Subscription

    def subscribe(self, topics: Iterable[str] | str | None = None, *,
                  pattern: str | re.Pattern[str] | None = None,
                  listener: RebalanceListener | None = None,
                  on_assign: RebalanceCallback | None = None,
                  on_revoke: RebalanceCallback | None = None,
                  on_lost: RebalanceCallback | None = None) -> None:
        """Subscribe to topics by name, or to all that match a pattern (re, or one name with "^"
        first).

        Inside `poll`, calls the listener's on_partitions_assigned, on_partitions_revoked and
        on_partitions_lost, or the three functions, with a list of TopicPartition.
        """
        callbacks = listener_of(listener, on_assign, on_revoke, on_lost)
        self._listener = callbacks, self._listener  # Holds the old one until replaced.
        self._run(self._core.subscribe(topics, pattern, weakly(callbacks)))
        self._listener = callbacks

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions, without a group."""
        self._run(self._core.assign(partitions))

    def unsubscribe(self) -> None:
        self._run(self._core.unsubscribe())

    def assignment(self) -> list[TopicPartition]:
        """Return the currently assigned partitions."""
        return [tp for tp, state in list(self._core.subscription.states.items())
                if not state.revoking]

    def subscription(self) -> set[str]:
        """Return the subscribed topics; for a pattern, those that currently match."""
        return set(self._core.subscription.topics)

    def member_id(self) -> str | None:
        """Return the member id in the group; None without a group."""
        membership = self._core.membership
        return membership.member_id if membership is not None else None

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata for Producer.send_offsets_to_transaction."""
        return self._core.group_metadata()

    # Positions

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the known positions of assigned partitions, in commit()'s format."""
        return self._core.consumed()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset` with the next poll."""
        self._run(self._core.seek(TopicPartition.of(partition), offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the beginning of these partitions; of all assigned ones by default."""
        self._run(self._core.seek_to(partitions, "earliest"))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        self._run(self._core.seek_to(partitions, "latest"))

    def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record to be polled."""
        return int(self._run(self._core.position(TopicPartition.of(partition), timeout)))

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop returning records of these partitions until `resume`."""
        self._run(self._core.set_paused(partitions, True))

    def resume(self, *partitions: TopicPartition) -> None:
        self._run(self._core.set_paused(partitions, False))

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, state in list(self._core.subscription.states.items()) if state.paused}

    def beginning_offsets(self, partitions: Iterable[TopicPartition],
                          timeout: float | None = None) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = self._run(
            self._core.boundary_offsets(partitions, EARLIEST, timeout))
        return found

    def end_offsets(self, partitions: Iterable[TopicPartition],
                    timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the next offset to be written; with read_committed, the last stable offset."""
        found: dict[TopicPartition, int] = self._run(
            self._core.boundary_offsets(partitions, LATEST, timeout))
        return found

    def offsets_for_times(self, times: Mapping[TopicPartition, int], timeout: float | None = None
                          ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time (ms) as OffsetAndTimestamp, or None."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = self._run(
            self._core.list_offsets(times, timeout))
        return found

    def lag(self, *partitions: TopicPartition, timeout: float | None = None
            ) -> dict[TopicPartition, int]:
        """Return the number of records after each position; of all assigned partitions by default.
        """
        found: dict[TopicPartition, int] = self._run(self._core.lag(partitions, timeout))
        return found

    # Commits

    def commit(self, offsets: Offsets | None = None,
               timeout: float | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit the positions, or these offsets (int or OffsetAndMetadata: the next to read).

        Raises CommitFailedError if the group has rebalanced without this member.
        """
        found: dict[TopicPartition, OffsetAndMetadata] = self._run(
            self._core.commit(offsets, timeout))
        return found

    def commit_async(self, offsets: Offsets | None = None,
                     callback: CommitCallback | None = None) -> None:
        """Commit in the background. callback(offsets, error or None) runs on the client's thread.
        """
        request = self._core.commit_request(offsets)
        self._driver.post(self._core.commit_in_background, request, callback)

    def store_offsets(self, offsets: Offsets | Record[Any, Any] | Iterable[Record[Any, Any]]
                      ) -> None:
        """Store offsets for later commits without offsets (enable.auto.offset.store=false).

        Accepts processed records, or offsets as for commit(). Callable from any thread. Raises
        IllegalStateError, and stores nothing, if a partition is not assigned.
        """
        self._core.store(offsets)

    def committed(self, partitions: Iterable[TopicPartition], timeout: float | None = None
                  ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for a partition without one."""
        found: dict[TopicPartition, OffsetAndMetadata | None] = self._run(
            self._core.committed(partitions, timeout))
        return found

    # Topics

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        return list(self._run(self._core.partitions_for(topic, timeout)))

    def list_topics(self, timeout: float | None = None) -> dict[str, list[int]]:
        """Return every topic of the cluster with its partitions."""
        found: dict[str, list[int]] = self._run(self._core.list_topics(timeout))
        return found

    def close(self, timeout: float = CLOSE_S) -> None:
        """Commit if that is automatic, leave the group and close the connections."""
        self._runner.close_client(self._core.close(timeout))


def empty_batch(names: list[ColumnName]) -> pa.RecordBatch:
    """Return a batch without rows."""
    import pyarrow as pa

    from pylog.client.columns import arrow

    shape = arrow.schema(names)
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in shape], schema=shape)
