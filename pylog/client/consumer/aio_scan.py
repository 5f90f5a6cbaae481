"""A range of a topic as Arrow record batches, for asyncio.

Owns: nothing; consumer.scan reads the topic, on threads of pylog.client.blocking.
Invariants: the event loop is never blocked; a batch is read only when it is requested.
Source: none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from pylog.client import blocking
from pylog.client.consumer import scan as blocking_scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Unpack

    import pyarrow as pa

    from pylog.client.interfaces import ColumnName, Time
    from pylog.client.options import ConsumerConfig, ConsumerOptions


async def scan(topic: str, *, since: Time = None, until: Time = None,
               columns: Iterable[ColumnName] | None = None,
               partitions: Iterable[int] | None = None,
               batch_records_max: int = blocking_scan.BATCH_RECORDS_MAX,
               config: ConsumerConfig | None = None, **more: Unpack[ConsumerOptions]
               ) -> AsyncIterator[pa.RecordBatch]:
    """Yield the topic's current records, or a time range of them: `async for batch in scan(…)`.

    The arguments and errors are those of pylog.client.scan.
    """
    reader = await blocking.run(lambda: blocking_scan.scan(
        topic, since=since, until=until, columns=columns, partitions=partitions,
        batch_records_max=batch_records_max, config=config, **more))
    while (batch := await blocking.run(lambda: next(reader, None))) is not None:
        yield batch
