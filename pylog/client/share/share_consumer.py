"""The share consumer of a program without asyncio: a topic as a queue, records or Arrow.

Owns: nothing; the work is sharing.Sharing's, on the shared event loop.
Invariants: (1) one thread at a time, but for `wakeup` and `close`; (2) a record is handed out
  again, here or to another member, until one accepts or rejects it, or its deliveries are used up.
Source: Kafka's KafkaShareConsumer (KIP-932).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pylog._native.columns import Record
from pylog.client.share.acknowledgements import Acknowledge
from pylog.client.producer import shutdown
from pylog.client.background_loop import Desk, Driver, SingleUser
from pylog.client.errors import KafkaError
from pylog.client.types import TopicPartition
from pylog.client.config.settings import SHARE_CONSUMER, Settings
from pylog.client.share.record_reader import COLUMNS, ShareRecords
from pylog.client.share.core import Sharing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Unpack

    from pylog.client.options import ShareConsumerOptions

CLOSE_S = 30.0
Callback = Callable[[TopicPartition, list[tuple[int, int]], KafkaError | None], Any]


class ShareConsumer:
    """Takes records of topics as one of a share group, which hands each to one member.

    With share_acknowledgement_mode="implicit" a poll accepts what the one before it gave; what
    nobody accepted when the consumer is closed goes to others.
    """

    def __init__(self, config: Mapping[str, Any] | None = None,
                 **more: Unpack[ShareConsumerOptions]):
        self.settings = Settings(SHARE_CONSUMER, config, **more)
        self._driver = Driver.shared()
        self._desk = Desk(self._driver)
        self._user = SingleUser("share consumer")
        self._core: Sharing = self._desk.run(self._make())
        self._records = ShareRecords(self._core)

    async def _make(self) -> Sharing:
        return await Sharing(self.settings).start()

    def __enter__(self) -> ShareConsumer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            shutdown.dropped(self, core)

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """Topics by name."""
        with self._user:
            self._desk.run(self._core.subscribe(topics))

    def unsubscribe(self) -> None:
        """Leaves the group; what is in hand and was not acknowledged goes to others."""
        with self._user:
            self._desk.run(self._core.unsubscribe())
            self._records.tell()

    def subscription(self) -> set[str]:
        return set(self._core.subscription.topics)

    def assignment(self) -> list[TopicPartition]:
        """The partitions from which this member takes records now; others may as well."""
        return list(self._core.subscription.states)

    def poll(self, timeout: float = 0.0) -> list[Record]:
        """Records, empty after `timeout` seconds.

        Whole batches: more than max.poll.records may come, unless share.acquire.mode is
        record_limit. Raises KafkaError; IllegalStateError while records of an earlier poll are not
        acknowledged in mode explicit.
        """
        with self._user:
            self._records.give_back()
            return self._records.records(self._desk.run(self._core.poll(timeout)))

    def poll_arrow(self, timeout: float = 0.0, columns: Iterable[str] = COLUMNS) -> Any:
        """As poll, as a pyarrow.RecordBatch: Consumer.poll_arrow's columns and delivery_count."""
        with self._user:
            self._records.give_back()
            return self._records.arrow(self._desk.run(self._core.poll(timeout)), columns)

    def __iter__(self) -> Iterator[Record]:
        """Record by record, without end. An iteration that was left is gone on with by the next
        one; a poll gives what it has not handed out to others."""
        while True:
            record = self._records.next_record()
            if record is None:
                self._records.iterate(self.poll(1.0))
            else:
                yield record

    def delivery_count(self, record: Record) -> int:
        """How often a record of the last poll was handed to somebody, this time included."""
        return self._records.delivery_count(record)

    def acknowledge(self, records: Record | Iterable[Record] | Any,
                    kind: Acknowledge = Acknowledge.ACCEPT) -> None:
        """What became of a record, of several, or of a batch with topic, partition and offset.

        For mode explicit. It is sent with the next poll or commit; until then the last word counts.
        RENEW begins the time anew that the record may be in hand. Raises IllegalStateError for what
        is not in hand.
        """
        with self._user:
            self._records.acknowledge(records, kind)

    def commit(self, timeout: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """Sends acknowledgements (in mode implicit: of all that is in hand) and waits.

        Returns what each partition's came to: InvalidRecordStateError when the time was over.
        """
        with self._user:
            found: dict[TopicPartition, KafkaError | None] = self._desk.run(
                self._core.commit(timeout))
            self._records.tell()
        return found

    def set_acknowledgement_commit_callback(self, callback: Callback | None) -> None:
        """callback(partition, [(first offset, last)], error or None): called inside poll, commit
        and close, with what became of acknowledgements."""
        self._records.callback = callback

    def wakeup(self) -> None:
        """From another thread: the poll that waits, or the next one, raises WakeupError."""
        self._core.woken = True
        self._driver.post(self._core.notify)

    def close(self, timeout: float = CLOSE_S) -> None:
        """Sends acknowledgements, gives back what else is in hand, leaves the group."""
        self._desk.run(self._core.close(timeout))
        self._records.tell()
