"""The expected result of the pipeline's raw load, compared with a simple model of Spark's rules."""

import json
from collections import deque

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pylog.client import Producer
from pylog.client.spark.stream_reader import limited
from pylog.client.types import TopicPartition
from spark import cluster, committed, orders
from spark.orders import Load, Row, Total

LOAD = Load(orders=4000, per_trigger=100)


def micro_batches(records, most):
    """Yield the batches of a query with at most `most` records per batch."""
    queues = {}
    for record in records:
        queues.setdefault(TopicPartition("raw", record.partition), deque()).append(record)
    none = dict.fromkeys(queues, 0)
    while any(queues.values()):
        waiting = {place: len(queue) for place, queue in queues.items()}
        yield [queues[place].popleft() for place, count in limited(none, waiting, most()).items()
               for _ in range(count)]


def kept_by_spark(load, most):
    """Return the ids of a query that drops duplicates within a watermark, with counts."""
    newest, passed_before, passed = 0, 0, 0
    until, kept = {}, []
    for batch in micro_batches(orders.records(load), most):
        # A record is late by the previous batch's watermark; state expires by this batch's.
        for record in batch:
            if record.order and record.order.at_ms > passed_before:
                if record.order.id not in until:
                    kept.append(record.order.id)
                    until[record.order.id] = record.order.at_ms + 1000 * load.delay_s
        until = {id: end_ms for id, end_ms in until.items() if end_ms > passed}
        newest = max([newest, *(record.order.at_ms for record in batch if record.order)])
        passed_before, passed = passed, newest - 1000 * load.delay_s
    return sorted(kept)


@pytest.mark.parametrize("load", [
    LOAD, Load(3, 4000, partitions=1, per_trigger=150), Load(4, 6000, partitions=3, per_trigger=90),
    Load(5, 4000, per_trigger=60, delay_s=900, window_s=300)])
def test_retained_orders_do_not_depend_on_batch_boundaries(load, random_source):
    wanted = sorted(row.id for row in orders.rows(load))
    assert kept_by_spark(load, lambda: load.per_trigger) == wanted
    assert kept_by_spark(load, lambda: random_source.randint(1, load.per_trigger)) == wanted


def test_oversized_batches_would_keep_late_orders():
    wanted = {row.id for row in orders.rows(LOAD)}
    late = {record.order.id for record in orders.records(LOAD) if record.is_late}
    assert late and not late & wanted
    assert late <= set(kept_by_spark(LOAD, lambda: 1_000_000))


def test_load_contains_duplicate_late_and_unreadable_orders():
    records = list(orders.records(LOAD))
    ids = [record.order.id for record in records if record.order]
    assert len(ids) - len(set(ids)) > 200
    assert sum(record.is_late for record in records) > 20
    assert sum(record.order is None for record in records) > 20
    assert records == list(orders.records(LOAD)) != list(orders.records(Load(1, 4000)))


def test_duplicate_is_sent_to_the_partition_of_the_original():
    places = {}
    for record in orders.records(LOAD):
        places.setdefault(record.key, set()).add(record.partition)
    assert all(len(found) == 1 for found in places.values())


def row(id, second, category="books", amount=2):
    return Row(id, 1000 * second, "p0", category, amount, 10 * amount)


def test_totals_are_of_the_windows_that_the_watermark_has_passed():
    given = [row("a", 0), row("b", 59, amount=3), row("c", 59, "games"), row("d", 60),
             row("e", 120), row("last", 720)]
    found = orders.totals(Load(delay_s=600, window_s=60), given)
    assert sorted(found) == [Total(0, "books", 2, 5, 50), Total(0, "games", 1, 2, 20),
                             Total(60_000, "books", 1, 2, 20)]


def test_only_the_last_totals_of_a_load_are_pending():
    found = orders.totals(LOAD, orders.rows(LOAD))
    assert sum(total.orders for total in found) == len(orders.rows(LOAD)) - 1


@pytest.mark.parametrize("found, line", [
    ([row("a", 1)], "rows: 1 missing: Row(id='b'"),
    ([row("a", 1), row("b", 2), row("b", 2)], "rows: 1 too many: Row(id='b'"),
    ([row("a", 1), row("b", 3)], "rows: 1 missing: Row(id='b', at_ms=2000")])
def test_missing_duplicate_or_wrong_rows_are_named(found, line):
    wanted = [row("b", 2), row("a", 1)]
    assert orders.faults("rows", wanted, wanted[::-1]) == []
    assert orders.faults("rows", wanted, found)[0].startswith(line)


def test_check_names_missing_rows_and_exits_with_1_or_with_2_without_a_topic(
        brokerd, tmp_path, capsys):
    given = ["--bootstrap", brokerd.bootstrap, "--orders", "300"]
    assert orders.main(["load", *given, "--from", "sent", "--products",
                        str(tmp_path / "products.csv")]) == 0
    sent = len(list(orders.records(Load(orders=300))))
    assert f"sent {sent} records" in capsys.readouterr().out
    cluster.create_topic({"bootstrap.servers": brokerd.bootstrap}, "empty", 1)
    check = ["check", *given, "--parquet", str(tmp_path), "--to"]
    assert orders.main([*check, "empty"]) == 1
    said = capsys.readouterr().out
    assert f"rows: {len(orders.rows(Load(orders=300)))} missing" in said and "totals: " in said
    assert orders.main([*check, "not-there"]) == 2
    assert "not-there" in capsys.readouterr().err


def written(found, directory):
    """Write rows as a file that the pipeline has committed."""
    columns = {name: [getattr(each, name) for each in found] for name in Row._fields
               if name != "at_ms"}
    columns["at"] = pa.array([each.at_ms for each in found], pa.timestamp("ms", "UTC"))
    path, log = directory / "part-0.parquet", directory / committed.LOG
    pq.write_table(pa.table(columns), path)
    log.mkdir()
    (log / "0").write_text("v1\n" + json.dumps({"path": path.as_uri()}))


def value(total, window_s):
    start, end = (orders._iso(total.start_ms + more) for more in (0, 1000 * window_s))
    return json.dumps({"start": start, "end": end, **dict(zip(Total._fields[1:], total[1:]))})


def test_check_reports_late_orders_of_oversized_batches_and_compares_totals_with_rows(
        brokerd, tmp_path, capsys):
    load = Load(orders=1000, per_trigger=50)
    found = orders.rows(load) + orders.late_rows(load)[:3]
    written(found, tmp_path)
    cluster.create_topic({"bootstrap.servers": brokerd.bootstrap}, "late-totals", 1)
    totals = orders.totals(load, found)
    with Producer(bootstrap_servers=brokerd.bootstrap) as producer:
        for total in totals:
            producer.send("late-totals", value(total, load.window_s).encode())
    check = ["check", "--bootstrap", brokerd.bootstrap, "--orders", "1000", "--per-trigger", "50",
             "--to", "late-totals", "--parquet", str(tmp_path)]
    assert orders.main(check) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and "3 late orders" in lines[0] and "more than 50 records" in lines[0]
