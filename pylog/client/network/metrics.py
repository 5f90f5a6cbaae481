"""Client metrics with Kafka's names.

Owns: the counters of one client object's connections and records.
Invariants: records are counted per batch where possible; totals never decrease; topics beyond
  TOPICS_MAX are counted together as "".
Source: the metrics of Kafka's Java clients (producer-metrics, consumer-fetch-manager-metrics,
  consumer-coordinator-metrics). Rates are left to the reader of the totals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from pylog.client import callbacks

TOPICS_MAX = 1000

Metrics = dict[str, dict[str, float]]


class Traffic:
    """Counters of all connections of a client object."""

    def __init__(self) -> None:
        self.opened = self.closed = self.refused_logins = 0
        self.requests = self.responses = self.bytes_out = self.bytes_in = 0
        self.latency_s = self.latency_most_s = 0.0
        self.opening: Any = None  # The connection opened last, until it is ready.

    def answered(self, latency_s: float, size: int) -> None:
        self.responses += 1
        self.bytes_in += size
        self.latency_s += latency_s
        self.latency_most_s = max(self.latency_most_s, latency_s)

    def rows(self) -> dict[str, float]:
        mean_s = self.latency_s / self.responses if self.responses else 0.0
        return {
            "connection-count": self.opened - self.closed,
            "connection-creation-total": self.opened, "connection-close-total": self.closed,
            "failed-authentication-total": self.refused_logins,
            "request-total": self.requests, "response-total": self.responses,
            "outgoing-byte-total": self.bytes_out, "incoming-byte-total": self.bytes_in,
            "request-latency-avg": mean_s * 1000, "request-latency-max": self.latency_most_s * 1000,
        }


class Records:
    """Counters of sent or read records, in total and by topic."""

    def __init__(self) -> None:
        self.batches = self.records = self.bytes = self.errors = self.retries = 0
        self.topics: dict[str, list[int]] = {}

    def batch(self, topic: str, records: int, size: int) -> None:
        self.batches += 1
        self.records += records
        self.bytes += size
        row = self._topic(topic)
        row[0] += records
        row[1] += size

    def lost(self, topic: str, records: int) -> None:
        self.errors += records
        self._topic(topic)[2] += records

    def _topic(self, topic: str) -> list[int]:
        row = self.topics.get(topic)
        if row is None:
            # Counts topics beyond TOPICS_MAX together.
            name = topic if len(self.topics) < TOPICS_MAX else ""
            row = self.topics.setdefault(name, [0, 0, 0])
        return row

    def by_topic(self, group: str, names: tuple[str, str, str]) -> Metrics:
        """Return {"<group>.<topic>": {name: total}}; names: of records, of bytes, of errors."""
        return {f"{group}.{topic}": dict(zip(names, map(float, row)))
                for topic, row in sorted(self.topics.items())}


async def report(interval_s: float, function: Callable[[Metrics], Any],
                 metrics: Callable[[], Metrics]) -> None:
    """Call function(metrics()) periodically; log its exceptions."""
    while True:
        await asyncio.sleep(interval_s)
        callbacks.call("stats_cb", function, metrics())


def age_s(since_s: float) -> float:
    """Return the seconds since a monotonic time; -1 if it is unset."""
    return time.monotonic() - since_s if since_s else -1.0
