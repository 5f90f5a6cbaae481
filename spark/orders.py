"""Send sample orders for the pipeline, and check what the pipeline made of them.

    python -m pylog.spark.orders load --bootstrap localhost:9092 --from raw --products products.csv
    python -m pylog.spark.orders check --bootstrap localhost:9092 --to totals --parquet orders/

Owns: nothing.
Invariants: input and expected result are functions of a Load, without Spark; the result does not
  depend on how the topic is divided into micro-batches: late orders are dropped if no batch has
  more than `per_trigger` records, and an order that is not late is far from the limit; a topic or
  directory is good only if it has each expected row once and no other.
Source: Spark drops rows older than the watermark of the previous batch: the latest time of all but
  the last two batches, minus the delay.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import heapq
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import cluster
from .committed import committed

START_MS = 1_767_225_600_000
STEP_MS, DISORDER_MS, LATE_MS_MAX = 2_000, 120_000, 3_600_000
DOUBLED, LATE, UNREADABLE = 0.10, 0.02, 0.01
NOT_READABLE = (b"", b"no JSON", b'{"id": "o1", "at": "2026-01-01T00:0', b'{"amount": 3}',
                b'{"id": "o1", "at": "2026-01-01T00:00:00Z", "product": "p0", "amount": "many"}')
CATEGORIES = ("books", "games", "tools")
PRODUCTS = 12
STABLE_WAIT_S = 30.0
EXAMPLES_MAX = 5
COLUMNS = ["id", "at", "product", "category", "amount", "cents"]


@dataclass(frozen=True)
class Load:
    """per_trigger, delay_s, window_s: as passed to the pipeline."""

    seed: int = 0
    orders: int = 10_000
    partitions: int = 2
    per_trigger: int = 500
    delay_s: int = 600
    window_s: int = 60


class Order(NamedTuple):
    id: str
    at_ms: int
    product: str
    amount: int

    def value(self) -> bytes:
        return json.dumps({"id": self.id, "at": _iso(self.at_ms), "product": self.product,
                           "amount": self.amount}).encode()


class Record(NamedTuple):
    """A record of the raw topic. order: None if it is unreadable. is_late: must be dropped."""

    partition: int
    key: bytes
    value: bytes
    order: Order | None
    is_late: bool = False


class Row(NamedTuple):
    """A row of the Parquet files: an order with the columns of the product list."""

    id: str
    at_ms: int
    product: str
    category: str
    amount: int
    cents: int


class Total(NamedTuple):
    """A row of the totals topic, for the window that begins at that time."""

    start_ms: int
    category: str
    orders: int
    units: int
    cents: int


def products() -> dict[str, tuple[str, int]]:
    """Return category and price in cents of each product; some orders use an unlisted product."""
    return {f"p{number}": (CATEGORIES[number % len(CATEGORIES)], 100 + 37 * number)
            for number in range(PRODUCTS)}


def records(load: Load) -> Iterator[Record]:
    """Yield the records in sending order. A function of the Load; late orders do not depend on the
    batches.
    """
    chance = random.Random(load.seed)
    # Per partition and offset: the latest time up to it.
    newest: list[list[int]] = [[] for _ in range(load.partitions)]
    again: list[tuple[int, int, Record]] = []
    for number in range(load.orders):
        ready = [_new(load, chance, newest, number)]
        while again and again[0][0] <= number:
            ready.append(heapq.heappop(again)[2])
        for record in ready:
            _note(newest[record.partition], record)
            yield record
        if ready[0].order and chance.random() < DOUBLED:
            # Some are sent long after the watermark has passed the first copy.
            behind = chance.choice((1, 1, 30, 4 * load.per_trigger * load.partitions))
            heapq.heappush(again, (number + chance.randint(1, behind), number, ready[0]))
    for _, _, record in sorted(again):
        yield record
    # The last order moves the watermark past the windows of all others.
    end_ms = START_MS + load.orders * STEP_MS + 1000 * (load.delay_s + load.window_s) + LATE_MS_MAX
    yield _record(load, load.orders, Order(f"o{load.orders:07}", end_ms, "p0", 1))


def _new(load: Load, chance: random.Random, newest: list[list[int]], number: int) -> Record:
    order = Order(f"o{number:07}", START_MS + number * STEP_MS - chance.randrange(DISORDER_MS),
                  f"p{chance.randrange(PRODUCTS + 1)}", chance.randint(1, 9))
    if chance.random() < UNREADABLE:
        return Record(number % load.partitions, order.id.encode(), chance.choice(NOT_READABLE),
                      None)
    # At least two batches end between that record and this one.
    before = len(newest[number % load.partitions]) - 2 * load.per_trigger
    if before < 0 or chance.random() >= LATE:
        return _record(load, number, order)
    passed_ms = newest[number % load.partitions][before] - 1000 * load.delay_s
    late = order._replace(at_ms=passed_ms - 1 - chance.randrange(LATE_MS_MAX))
    return _record(load, number, late)._replace(is_late=True)


def _record(load: Load, number: int, order: Order) -> Record:
    return Record(number % load.partitions, order.id.encode(), order.value(), order)


def _note(newest: list[int], record: Record) -> None:
    at_ms = record.order.at_ms if record.order else 0
    newest.append(max(at_ms, newest[-1] if newest else 0))


def rows(load: Load) -> list[Row]:
    """Return the expected rows of the Parquet files, unordered."""
    return list({record.order.id: _row(record.order) for record in records(load)
                 if record.order and not record.is_late}.values())


def late_rows(load: Load) -> list[Row]:
    """Return the rows of the late orders, which must not be in the Parquet files."""
    return [_row(record.order) for record in records(load) if record.order and record.is_late]


def _row(order: Order) -> Row:
    category, price = products().get(order.product, ("unknown", 0))
    return Row(order.id, order.at_ms, order.product, category, order.amount, price * order.amount)


def totals(load: Load, given: Iterable[Row]) -> list[Total]:
    """Return the expected rows of the totals topic: the windows that the watermark has passed."""
    given = list(given)
    passed_ms = max(row.at_ms for row in given) - 1000 * load.delay_s
    sums: dict[tuple[int, str], list[int]] = {}
    for row in given:
        start_ms = row.at_ms - row.at_ms % (1000 * load.window_s)
        if start_ms + 1000 * load.window_s <= passed_ms:
            found = sums.setdefault((start_ms, row.category), [0, 0, 0])
            for place, value in enumerate((1, row.amount, row.cents)):
                found[place] += value
    return [Total(*key, *found) for key, found in sums.items()]


def wrong(load: Load, bootstrap: str, topic: str, directory: str) -> list[str]:
    """Return the differences after the pipeline has read a whole load. Raises ClusterError.

    Expects totals of the rows that exist: late orders that were written are reported once, as rows.
    """
    found = read_rows(directory)
    late = sorted(set(late_rows(load)) & set(found))
    expected = rows(load) + late
    lines = faults("rows", expected, found) + faults(
        "totals", totals(load, expected), read_totals(bootstrap, topic, load.window_s))
    if late:
        lines.append(
            f"rows: {len(late)} late orders were written: {_examples(late)}. They are dropped if "
            f"no batch has more than {load.per_trigger} records: use the same --per-trigger for "
            "load, pipeline and check, with new topics and directories")
    return lines


def faults(what: str, expected: Iterable[Any], found: Iterable[Any]) -> list[str]:
    """Return one line for each kind of difference."""
    wanted, seen = Counter(expected), Counter(found)
    lines = []
    for kind, more in (("missing", wanted - seen), ("too many", seen - wanted)):
        if more:
            lines.append(f"{what}: {more.total()} {kind}: {_examples(more)}")
    return lines


def _examples(given: Iterable[Any]) -> str:
    return ", ".join(map(str, sorted(given)[:EXAMPLES_MAX]))


def send(bootstrap: str, topic: str, given: Iterable[Record]) -> int:
    """Send the records and return how many were acknowledged. Sends the last record after all
    others are acknowledged: if Spark read it long before them, they would be late.
    """
    from pylog.client import Producer

    given = list(given)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for part in (given[:-1], given[-1:]):
            for record in part:
                producer.send(topic, record.value, record.key, partition=record.partition)
            producer.flush()
    return len(given)


def read_rows(directory: str) -> list[Row]:
    """Return the rows of the directory's committed files."""
    import pyarrow.parquet as pq

    found: list[Row] = []
    for path in committed(directory):
        columns = pq.read_table(path, columns=COLUMNS, partitioning=None).to_pydict()
        columns["at"] = [_milliseconds(at) for at in columns["at"]]
        found += map(Row, *columns.values())
    return found


def read_totals(bootstrap: str, topic: str, window_s: int) -> list[Total]:
    """Return the committed records. Raises ClusterError while transactions are open."""
    from pylog.client import scan

    given = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}
    end_s = time.monotonic() + STABLE_WAIT_S
    while (cluster.ends(given, topic)
           != cluster.ends({"bootstrap.servers": bootstrap}, topic)):
        if time.monotonic() > end_s:
            raise cluster.ClusterError(
                f"topic {topic!r} has an open transaction. Wait until the pipeline has ended.")
        time.sleep(0.1)
    found = []
    for batch in scan(topic, columns=["value"], bootstrap_servers=bootstrap,
                      isolation_level="read_committed"):
        for value in batch.column(0).to_pylist():
            row = json.loads(value)
            start, end = (_milliseconds(datetime.datetime.fromisoformat(row[name]))
                          for name in ("start", "end"))
            if end - start != 1000 * window_s:
                raise cluster.ClusterError(
                    f"topic {topic!r} has windows of {(end - start) // 1000} s, not "
                    f"{window_s} s. Use the pipeline's --window for the check.")
            found.append(Total(start, *(row[name] for name in Total._fields[1:])))
    return found


def _iso(at_ms: int) -> str:
    at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _milliseconds(at: datetime.datetime) -> int:
    """Return the milliseconds of a time; without a zone it is UTC."""
    at = at if at.tzinfo else at.replace(tzinfo=datetime.UTC)
    return round(at.timestamp() * 1000)


def write_products(path: str) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("product", "category", "cents"))
        writer.writerows((name, *row) for name, row in products().items())


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    made = Load(options.seed, options.orders, options.partitions, options.per_trigger,
                options.delay, options.window)
    try:
        return options.work(options, made)
    except (cluster.ClusterError, OSError) as failure:
        print(f"orders: {failure}", file=sys.stderr)
        return 2


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pylog.spark.orders", description=__doc__.partition("\n")[0],
        epilog="Give both commands the same --seed, --orders, --partitions, --per-trigger, --delay "
        "and --window: the check computes the expected result from them.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    load = commands.add_parser("load", help="send the orders", description=(
        "Send orders, some of them duplicated, late or unreadable, and write the product list."))
    check = commands.add_parser("check", help="compare the pipeline's result with the expected one",
                                description=(
        "Compare the totals and the Parquet files with the result that is computed without Spark. "
        "Exit code 0: no differences; 1: differences; 2: the result could not be read."))
    load.set_defaults(work=_load)
    check.set_defaults(work=_check)
    load.add_argument("--from", dest="source", required=True, metavar="TOPIC",
                      help="topic to send to; created if it does not exist")
    load.add_argument("--products", required=True, metavar="FILE",
                      help="CSV file to write the product list to")
    check.add_argument("--to", dest="target", required=True, metavar="TOPIC",
                       help="topic with the totals")
    check.add_argument("--parquet", required=True, metavar="DIRECTORY",
                       help="the pipeline's directory of Parquet files")
    for command in (load, check):
        add = command.add_argument
        add("--bootstrap", required=True, metavar="HOST:PORT", help="broker; several with commas")
        add("--seed", type=int, default=0, metavar="N",
            help="seed of the orders (default: %(default)s)")
        add("--orders", type=int, default=10_000, metavar="N",
            help="number of different orders (default: %(default)s)")
        add("--partitions", type=int, default=2, metavar="N",
            help="partitions of the raw topic (default: %(default)s)")
        add("--per-trigger", type=int, default=500, metavar="N",
            help="the pipeline's --per-trigger, or more (default: %(default)s)")
        add("--delay", type=int, default=600, metavar="SECONDS",
            help="the pipeline's --delay (default: %(default)s)")
        add("--window", type=int, default=60, metavar="SECONDS",
            help="the pipeline's --window (default: %(default)s)")
    return parser


def _load(options: argparse.Namespace, made: Load) -> int:
    cluster.create_topic({"bootstrap.servers": options.bootstrap}, options.source,
                         made.partitions)
    write_products(options.products)
    count = send(options.bootstrap, options.source, records(made))
    print(f"orders: sent {count} records; the pipeline must keep {len(rows(made))} orders of them")
    return 0


def _check(options: argparse.Namespace, made: Load) -> int:
    kept = rows(made)
    found = wrong(made, options.bootstrap, options.target, options.parquet)
    print("\n".join(found) or
          f"GOOD: {len(kept)} rows and {len(totals(made, kept))} totals, each exactly once")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
