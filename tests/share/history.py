"""What happened to the records of a share group, and a verdict on it.

A record's fate is known when its acceptance or rejection was confirmed, when it was delivered as
often as the group allows, or when an answer that would have told it was lost. A record that the
producer got acknowledged and that has no such fate must be available: it is delivered to whoever
asks next. The verdict names the records for which that is not so.
"""

import threading
from collections import Counter
from typing import NamedTuple

ACCEPTED, REJECTED, RELEASED = "accepted", "rejected", "released"
FINAL = (ACCEPTED, REJECTED)


class Record(NamedTuple):
    """partition, offset: where the producer was told that it is."""

    partition: int
    offset: int


class Delivery(NamedTuple):
    """count: how often the broker says that it was delivered, this time included."""

    record: Record
    value: bytes
    count: int


class History:
    """Events of producers and share consumers, from any thread.

    deliveries_max: the group's delivery count limit.
    """

    def __init__(self, deliveries_max: int):
        self.deliveries_max = deliveries_max
        self.refusals: Counter[str] = Counter()      # Acknowledgements by the error's name.
        self._lock = threading.Lock()
        self._values: dict[bytes, Record] = {}       # Acknowledged to the producer.
        self._unsure: set[bytes] = set()             # Sent, and perhaps written.
        self._deliveries: dict[bytes, list[Delivery]] = {}
        self._fates: dict[bytes, str] = {}
        self._counts: dict[bytes, int] = {}          # Of the delivery that settled a record.
        self._unanswered: set[bytes] = set()
        self._faults: list[str] = []

    # ---- events ---------------------------------------------------------------------------------

    def sent(self, value: bytes) -> None:
        with self._lock:
            self._unsure.add(value)

    def written(self, value: bytes, record: Record) -> None:
        """The producer got an acknowledgement."""
        with self._lock:
            self._unsure.discard(value)
            self._values[value] = record

    def lost(self, value: bytes) -> None:
        """All replicas have lost the record: what becomes of it is not the group's fault."""
        with self._lock:
            if self._values.pop(value, None) is not None:
                self._unsure.add(value)
            self._fates.pop(value, None)

    def delivered(self, delivery: Delivery) -> None:
        with self._lock:
            value = delivery.value
            self._deliveries.setdefault(value, []).append(delivery)
            if value in self._fates and delivery.count > self._counts[value]:
                self._faults.append(f"{value!r} at {delivery.record} was delivered after it was "
                                    f"{self._fates[value]}")
            if delivery.count > self.deliveries_max:
                self._faults.append(f"{value!r} was delivered {delivery.count} times")

    def acknowledged(self, value: bytes, kind: str, count: int = 0) -> None:
        """The broker has confirmed a member's acknowledgement.

        count: of the delivery that it answers. A member may see an earlier delivery later: its
        client got those records before another leader gave them to this member.
        """
        with self._lock:
            if kind in FINAL:
                self._fates[value], self._counts[value] = kind, count

    def refused(self, value: bytes, kind: str, error: str, is_answer: bool) -> None:
        """The broker has refused an acknowledgement, or, not is_answer, has not answered."""
        with self._lock:
            self.refusals[error] += 1
            if not is_answer and kind in FINAL:
                self._unanswered.add(value)

    # ---- verdict --------------------------------------------------------------------------------

    def open_values(self) -> set[bytes]:
        """The records that the group must still deliver."""
        with self._lock:
            return {value for value in self._values if not self._is_settled(value)}

    def _is_settled(self, value: bytes) -> bool:
        return value in self._fates or value in self._unanswered or any(
            row.count >= self.deliveries_max for row in self._deliveries.get(value, ()))

    def faults(self) -> list[str]:
        """What must not be, once everything that is available has been delivered."""
        found = list(self._faults)
        for value in sorted(self.open_values()):
            rows = self._deliveries.get(value, [])
            found.append(f"{value!r} at {self._values[value]} was delivered {len(rows)} times, "
                         "and is neither settled nor available")
        with self._lock:
            for value, rows in self._deliveries.items():
                known = self._values.get(value)
                if known is None and value not in self._unsure:
                    found.append(f"{value!r} was delivered and never sent")
                if known is not None and any(row.record != known for row in rows):
                    found.append(f"{value!r} was delivered from {rows[0].record}, "
                                 f"not from {known}")
        return found

    def summary(self) -> str:
        with self._lock:
            return (f"{len(self._values)} written, {len(self._deliveries)} delivered, "
                    f"{len(self._fates)} settled, {len(self._unanswered)} unanswered, "
                    f"refusals {dict(self.refusals)}")
