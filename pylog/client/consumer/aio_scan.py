"""A range of a topic as Arrow record batches, for asyncio.

Owns: each scan's consumer, from its first batch until the generator ends or is closed.
Invariants: the event loop is never blocked, also not by closing the consumer; a batch is read only
  when it is requested; when aclose() or a cancelled read returns, the connections are closed.
Source: none.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterable

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
               ) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the topic's current records, or a time range of them: `async for batch in scan(…)`.

    The arguments and errors are those of pylog.client.scan. To leave the loop early, use
    `async with contextlib.aclosing(scan(…)) as batches`: its end closes the connections. Without
    it, asyncio closes them some time after the loop.
    """
    _, batches = await blocking.run(lambda: blocking_scan.prepared(
        topic, since=since, until=until, columns=columns, partitions=partitions,
        batch_records_max=batch_records_max, config=config, **more))
    # A cancelled read continues on its thread, and a running generator cannot be closed.
    reading = threading.Lock()

    def read() -> pa.RecordBatch | None:
        with reading:
            return next(batches, None)

    def close() -> None:
        with reading:
            batches.close()

    try:
        while (batch := await blocking.run(read)) is not None:
            yield batch
    finally:
        await blocking.run(close)
