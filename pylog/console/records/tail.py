"""The newest records of a topic as they arrive, a bounded number each second.

Owns: the position in each partition.
Invariants: at most RECORDS_MAX records are shown each second, and `left_out` counts all others; the
  bytes fetched each second are bounded, whatever the producers send.
Source: none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import NamedTuple

from pylog.client.columns.rows import Row
from pylog.client.consumer.list_offsets import list_offsets
from pylog.client.network.cluster import Cluster
from pylog.client.types import LATEST, TopicPartition
from pylog.console.records.filters import NEWEST, Filter
from pylog.console.values.row_decoding import RowDecoder
from pylog.console.records.search import Limits, RecordSearch, plan

INTERVAL_S = 1.0
RECORDS_MAX = 50
COMPARED_MAX = 5000  # Offsets read each second for a filter.
SEARCH_S_MAX = 5.0


class Tick(NamedTuple):
    """One interval. rows: the newest first. left_out: offsets that were not shown or compared."""

    rows: list[Row]
    arrived: int
    left_out: int


async def ticks(cluster: Cluster, topic: str, chosen: Filter, seconds: Callable[[], float],
                decoder: RowDecoder) -> AsyncGenerator[Tick, None]:
    """Yield a Tick each second. Raises KafkaError, PageError."""
    ranges, _ = await plan(cluster, topic, replace(
        chosen, left=None, since_ms=None, until_ms=None, offset_from=None, offset_until=None,
        all_partitions=True))
    info = await cluster.topic(topic)
    wanted = chosen.partitions if chosen.partitions is not None else sorted(info.partitions)
    at = {partition: rows[-1][1] for partition, rows in ranges.items()}
    parts = [TopicPartition(topic, partition) for partition in wanted]
    while True:
        listed = await list_offsets(cluster, dict.fromkeys(parts, LATEST), int(chosen.committed))
        ends = {tp.partition: one.offset for tp, one in listed.items() if one is not None}
        fresh = {partition: (min(at.get(partition, 0), end), end)
                 for partition, end in ends.items() if at.get(partition, 0) < end}
        at.update(ends)
        arrived = sum(end - start for start, end in fresh.values())
        most = RECORDS_MAX if chosen.is_empty else COMPARED_MAX
        share = max(1, most // max(1, len(fresh)))
        windows = {partition: [(max(start, end - share), end)]
                   for partition, (start, end) in fresh.items()}
        search = RecordSearch(cluster, topic, replace(chosen, order=NEWEST), windows,
                              Limits(RECORDS_MAX, SEARCH_S_MAX), seconds, decoder)
        rows: list[Row] = []
        async for found in search.found():
            rows += found.rows()
        shown = len(rows) if chosen.is_empty else search.progress.records
        yield Tick(rows, arrived, max(0, arrived - shown))
        await asyncio.sleep(INTERVAL_S)
