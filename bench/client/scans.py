"""Compare scan() with a loop of poll_arrow() over the same records: `python -m bench.client.scans`.

Owns: a broker in a separate process.
Invariants: all variants read the same records in this process, in alternating order; the first
  round is printed too: its extra cost is memory that is touched for the first time.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable, Iterator
from typing import Any

PARTITIONS, BATCH = 4, 100_000


def used() -> tuple[float, int]:
    """Return (CPU seconds of this process, page faults)."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime, found.ru_minflt


def fill(bootstrap: str, records: int, size: int) -> None:
    import pyarrow as pa

    from pylog.client import Producer

    table = pa.table({"value": pa.array([b"v" * size] * BATCH, pa.binary())})
    with Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(records // BATCH):
            producer.send_arrow(table, "scanned")
        producer.flush()


def polled(bootstrap: str, records: int) -> Iterator[Any]:
    from pylog.client import Consumer, TopicPartition

    parts = [TopicPartition("scanned", number) for number in range(PARTITIONS)]
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        while records > 0:
            batch = consumer.poll_arrow(1.0)
            records -= batch.num_rows
            yield batch


def scanned(bootstrap: str, records: int) -> Iterator[Any]:
    from pylog.client import scan

    yield from scan("scanned", bootstrap_servers=bootstrap)


def measure(way: Callable[[str, int], Iterator[Any]], keeps: bool, bootstrap: str,
            records: int) -> tuple[float, int]:
    before, kept, count = used(), [], 0
    for batch in way(bootstrap, records):
        count += batch.num_rows
        if keeps:
            kept.append(batch)
    assert count == records, (count, records)
    after = used()
    return after[0] - before[0], after[1] - before[1]


def main() -> int:
    from pylog.testing import Broker

    parser = argparse.ArgumentParser(prog="python -m bench.client.scans")
    parser.add_argument("--records", type=int, default=1_000_000, help=f"a multiple of {BATCH}")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    ways = [(f"{way.__name__}{', kept' * keeps}", way, keeps)
            for keeps in (False, True) for way in (polled, scanned)]
    with Broker(process=True) as broker:
        broker.create_topic("scanned", partitions=PARTITIONS)
        fill(broker.bootstrap, given.records, given.size)
        print(f"{'round':>5}  {'way':16}{'CPU s':>8}{'faults':>9}")
        for number in range(given.rounds):
            for name, way, keeps in ways if number % 2 else ways[::-1]:
                cpu_s, faults = measure(way, keeps, broker.bootstrap, given.records)
                print(f"{number:5}  {name:16}{cpu_s:8.2f}{faults:9}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
