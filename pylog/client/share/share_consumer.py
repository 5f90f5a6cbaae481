"""The blocking share consumer: a topic as a queue, as records or Arrow.

Owns: nothing. core.Sharing does the work, on the shared event loop.
Invariants: one thread at a time, except for `wakeup` and `close`; a record is delivered again, here
  or to another member, until a member accepts or rejects it or its delivery limit is reached.
Source: Kafka's KafkaShareConsumer (KIP-932).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic

from pylog._native.client.columns import Record
from pylog.client.share.acknowledgements import Acknowledge
from pylog.client import shutdown
from pylog.client.background_loop import Driver, SingleUser, WorkRunner
from pylog.client.errors import KafkaError
from pylog.client.extras import require
from pylog.client.generics import K, V
from pylog.client.types import TopicPartition
from pylog.client.config.configured import Configured, given
from pylog.client.config.settings import SHARE_CONSUMER, Settings
from pylog.client.share.record_reader import COLUMNS, ShareRecords
from pylog.client.share.core import Sharing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self, Unpack

    import pyarrow as pa

    from pylog.client.interfaces import Deserializes, ShareColumnName
    from pylog.client.options import ShareConsumerConfig, ShareConsumerOptions

CLOSE_S = 30.0
Callback = Callable[[TopicPartition, list[tuple[int, int]], KafkaError | None], object]


class ShareConsumer(Configured, Generic[K, V]):
    """Read topics as a member of a share group, in which each record goes to one member.

    With share_acknowledgement_mode="implicit", a poll accepts the previous poll's records. Records
    that were not accepted when the consumer closes go to other members.
    """

    def __init__(self, config: ShareConsumerConfig | None = None, /, *,
                 key_deserializer: Deserializes[K] | None = None,
                 value_deserializer: Deserializes[V] | None = None,
                 **more: Unpack[ShareConsumerOptions]):
        self.settings = Settings(SHARE_CONSUMER, config, **given(
            more, key_deserializer=key_deserializer, value_deserializer=value_deserializer))
        self._driver = Driver.shared()
        self._runner = WorkRunner(self._driver)
        self._user = SingleUser("share consumer")
        self._core: Sharing = self._runner.run(self._make())
        self._records = ShareRecords(self._core)

    async def _make(self) -> Sharing:
        return await Sharing(self.settings).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            shutdown.dropped(self, core)

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """Subscribe to topics by name."""
        with self._user:
            self._runner.run(self._core.subscribe(topics))

    def unsubscribe(self) -> None:
        """Leave the group and release unacknowledged records to other members."""
        with self._user:
            self._runner.run(self._core.unsubscribe())
            self._records.run_callback()

    def subscription(self) -> set[str]:
        return set(self._core.subscription.topics)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this member currently reads; other members may read them too.
        """
        return list(self._core.subscription.states)

    def poll(self, timeout: float = 0.0) -> list[Record[K, V]]:
        """Return records; empty after `timeout` seconds.

        Returns whole batches, so possibly more than max.poll.records, unless share.acquire.mode is
        record_limit. Raises KafkaError, or in explicit mode IllegalStateError while records of an
        earlier poll are unacknowledged.
        """
        found = self._polled(timeout)
        # In each poll, no call follows this: a signal handler runs after calls.
        self._core.undelivered = ()
        return found

    def _polled(self, timeout: float) -> list[Record[K, V]]:
        with self._user:
            self._records.release_rest()
            return self._records.records(self._runner.run(self._core.poll(timeout)))

    def poll_arrow(self, timeout: float = 0.0, columns: Iterable[ShareColumnName] = COLUMNS
                   ) -> pa.RecordBatch:
        """Poll as a pyarrow.RecordBatch with Consumer.poll_arrow's columns and delivery_count."""
        require("poll_arrow", "numpy", "pyarrow")
        with self._user:
            self._records.release_rest()
            found = self._records.arrow(self._runner.run(self._core.poll(timeout)), columns)
        self._core.undelivered = ()
        return found

    def __iter__(self) -> Iterator[Record[K, V]]:
        """Iterate over records endlessly.

        After a break, the next iteration continues with the remaining records; a poll releases them
        to other members.
        """
        while True:
            record = self._records.next_record()
            if record is None:
                self._records.iterate(self._polled(1.0))
                self._core.undelivered = ()
            else:
                self._records.received = record
                yield record

    def delivery_count(self, record: Record[Any, Any]) -> int:
        """Return how often a record of the last poll was delivered, including this time."""
        return self._records.delivery_count(record)

    def acknowledge(self, records: Record[Any, Any] | Iterable[Record[Any, Any]] | pa.RecordBatch,
                    kind: Acknowledge = Acknowledge.ACCEPT) -> None:
        """Acknowledge a record, several, or a batch with topic, partition and offset.

        For explicit mode. Sent with the next poll or commit; until then the last call wins. RENEW
        restarts the record's lock duration. Raises IllegalStateError if a record is not acquired.
        """
        with self._user:
            self._records.acknowledge(records, kind)

    def commit(self, timeout: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """Send acknowledgements (in implicit mode: accept all acquired records) and wait.

        Returns the outcome for each partition: InvalidRecordStateError if the lock had expired.
        """
        with self._user:
            self._records.accept_received()
            found: dict[TopicPartition, KafkaError | None] = self._runner.run(
                self._core.commit(timeout))
            self._records.run_callback()
        return found

    def set_acknowledgement_commit_callback(self, callback: Callback | None) -> None:
        """Set callback(partition, [(first offset, last)], error or None). It is called inside poll,
        commit and close with the outcome of acknowledgements.
        """
        self._records.callback = callback

    def wakeup(self) -> None:
        """Make the waiting poll, or the next one, raise WakeupError. Callable from any thread."""
        self._core.woken = True
        self._driver.post(self._core.notify)

    def close(self, timeout: float = CLOSE_S) -> None:
        """Send acknowledgements, release other acquired records and leave the group."""
        self._runner.close_client(self._core.close(timeout))
        self._records.run_callback()
