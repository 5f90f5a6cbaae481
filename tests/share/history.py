"""Records the events of a share group's records, and computes a verdict.

A record is settled when its acceptance or rejection was confirmed, when it was delivered as often
as the group allows, or when the response with its outcome was lost. A record that was acknowledged
to the producer and is not settled must be available: the next fetch delivers it. The verdict names
the records that violate this.
"""

import threading
from collections import Counter
from typing import NamedTuple

ACCEPTED, REJECTED, RELEASED = "accepted", "rejected", "released"
FINAL = (ACCEPTED, REJECTED)


class Record(NamedTuple):
    """partition, offset: the place acknowledged to the producer."""

    partition: int
    offset: int


class Delivery(NamedTuple):
    """count: the broker's delivery count, including this delivery."""

    record: Record
    value: bytes
    count: int


class History:
    """Events of producers and share consumers, from any thread.

    deliveries_max: the group's delivery count limit.
    """

    def __init__(self, deliveries_max: int):
        self.deliveries_max = deliveries_max
        self.refusals: Counter[str] = Counter()  # acknowledgements by the error's name
        self._lock = threading.Lock()
        self._values: dict[bytes, Record] = {}  # acknowledged to the producer
        self._unsure: set[bytes] = set()  # sent, and perhaps written
        self._deliveries: dict[bytes, list[Delivery]] = {}
        self._fates: dict[bytes, str] = {}
        self._counts: dict[bytes, int] = {}  # of the delivery that settled a record
        self._unanswered: set[bytes] = set()
        self._faults: list[str] = []

    # ---- events ---------------------------------------------------------------------------------

    def sent(self, value: bytes) -> None:
        with self._lock:
            self._unsure.add(value)

    def written(self, value: bytes, record: Record) -> None:
        """The producer received an acknowledgement."""
        with self._lock:
            self._unsure.discard(value)
            self._values[value] = record

    def lost(self, value: bytes) -> None:
        """All replicas have lost the record: the group is not responsible for it."""
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

        count: of the acknowledged delivery. A member may process an earlier delivery later: its
        client received those records before another leader delivered them to this member.
        """
        with self._lock:
            if kind in FINAL:
                self._fates[value], self._counts[value] = kind, count

    def refused(self, value: bytes, kind: str, error: str, is_answer: bool) -> None:
        """The broker has rejected an acknowledgement, or, if not is_answer, has not responded."""
        with self._lock:
            self.refusals[error] += 1
            if not is_answer and kind in FINAL:
                self._unanswered.add(value)

    # ---- verdict --------------------------------------------------------------------------------

    def open_values(self) -> set[bytes]:
        """Return the records that the group must still deliver."""
        with self._lock:
            return {value for value in self._values if not self._is_settled(value)}

    def _is_settled(self, value: bytes) -> bool:
        return value in self._fates or value in self._unanswered or any(
            row.count >= self.deliveries_max for row in self._deliveries.get(value, ()))

    def faults(self) -> list[str]:
        """Return violations, after everything available has been delivered."""
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
