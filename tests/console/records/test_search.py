"""Searches of a broker's topic: ranges, order, limits, and what is left to search."""

import asyncio
import json
import time

import pytest

from pylog.client import NewTopic, Producer
from pylog.client.aio import Admin
from pylog.console.records import filters, search
from pylog.console.pages import PageError
from pylog.console.records.search import COMPLETE, LIMIT, STOPPED, TIME, Limits, RecordSearch
from pylog.testing import Broker

COUNT, PARTITIONS, TOPIC = 6000, 3, "orders"
NO_LIMITS = Limits()
NOW_MS = int(time.time() * 1000) - 100_000


@pytest.fixture(scope="module")
def bootstrap(broker):
    """Write COUNT records with ascending ids and times to three partitions, compressed."""
    with Producer(bootstrap_servers=broker.bootstrap, compression_type="zstd") as producer:
        _create(broker.bootstrap)
        for i in range(COUNT):
            producer.send(TOPIC, json.dumps({"id": i, "pad": "x" * 200}).encode(), b"key-%d" % i,
                          timestamp=NOW_MS + i)
    return broker.bootstrap


def _create(bootstrap, name=TOPIC):
    async def create():
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await admin.create_topics([NewTopic(name, PARTITIONS)])
    asyncio.run(create())


def run(bootstrap, query, *, limits=NO_LIMITS, seconds=time.monotonic, act=None, topic=TOPIC):
    """Search, and return (ids in the order of the result, the search, the shortcut)."""
    async def go():
        chosen = filters.parse(query)
        async with Admin(bootstrap_servers=bootstrap) as admin:
            ranges, shortcut = await search.plan(admin.cluster, topic, chosen)
            made = RecordSearch(admin.cluster, topic, chosen, ranges, limits, seconds)
            ids = []
            async for found in made.found():
                ids += [json.loads(row.value)["id"] for row in found.rows()]
                if act is not None:
                    act(made)
            return ids, made, shortcut
    return asyncio.run(go())


@pytest.mark.parametrize("order", filters.ORDERS)
def test_complete_search_compares_every_record(bootstrap, order):
    ids, made, _ = run(bootstrap, [("json", "$.id >= 100"), ("json", "$.id < 130"),
                                   ("order", order)])
    assert sorted(ids) == list(range(100, 130))
    assert (made.reason, made.is_complete, made.unread) == (COMPLETE, True, {})
    assert made.progress.records == made.progress.offsets == COUNT
    assert made.progress.share == 1 and made.progress.matches == 30


def test_newest_records_come_first(bootstrap):
    ids, made, _ = run(bootstrap, [], limits=Limits(matches=20))
    assert ids == list(range(COUNT - 1, COUNT - 21, -1))
    assert made.reason == LIMIT and not made.is_complete
    assert made.progress.records <= 20 * PARTITIONS


def test_partitions_take_turns_with_records_of_the_same_time(bootstrap):
    name = "at-once"
    with Producer(bootstrap_servers=bootstrap) as producer:
        _create(bootstrap, name)
        for i in range(90):
            producer.send(name, json.dumps({"id": i}).encode(), partition=i % PARTITIONS,
                          timestamp=NOW_MS)
    ids, *_ = run(bootstrap, [], limits=Limits(matches=9), topic=name)
    assert sorted(ids) == list(range(81, 90))


@pytest.mark.parametrize("order", filters.ORDERS)
@pytest.mark.parametrize("regex", [False, True])
def test_continued_searches_find_each_record_once(bootstrap, order, regex):
    query = [("value_regex", '"id": [12]\\d{3},')] if regex else [
        ("json", "$.id >= 1000"), ("json", "$.id < 3000")]
    query += [("order", order)]
    ids, made, _ = run(bootstrap, query, limits=Limits(matches=700))
    assert len(ids) == 700 and made.reason == LIMIT
    rounds = 0
    while made.left:
        left = filters.ranges_text(made.left)
        more, made, _ = run(bootstrap, [*query, ("left", left)], limits=Limits(matches=700))
        ids += more
        rounds += 1
    assert sorted(ids) == list(range(1000, 3000)) and rounds <= 4


def test_whole_key_is_searched_in_its_partition_first(bootstrap):
    ids, made, shortcut = run(bootstrap, [("key", "key-77")])
    assert ids == [77] and shortcut is not None and made.is_complete
    assert made.progress.records < COUNT
    ids, made, shortcut = run(bootstrap, [("key", "key-77"), ("all_partitions", "1")])
    assert ids == [77] and shortcut is None and made.progress.records == COUNT


def test_only_the_time_range_is_read(bootstrap):
    ids, made, _ = run(bootstrap, [("since", str(NOW_MS + 100)), ("until", str(NOW_MS + 150))])
    assert sorted(ids) == list(range(100, 150))
    assert made.progress.records == 50


def test_offsets_and_partitions_limit_the_range(bootstrap):
    ids, made, _ = run(bootstrap, [("partition", "1"), ("offset_from", "10"),
                                   ("offset_until", "15"), ("order", "oldest")])
    assert len(ids) == made.progress.records == 5
    assert made.is_complete


def test_unknown_partition_is_an_error(bootstrap):
    for query in ([("partition", "7")], [("left", "7:0-5")]):
        with pytest.raises(PageError, match="no such partition"):
            run(bootstrap, query)


@pytest.mark.parametrize("order", filters.ORDERS)
def test_stopped_search_names_what_it_has_not_read(bootstrap, order):
    _, made, _ = run(bootstrap, [("value", "nowhere"), ("order", order)],
                     act=lambda made: made.stop())
    assert made.reason in (STOPPED, COMPLETE)
    unread = sum(end - start for rows in made.unread.values() for start, end in rows)
    assert unread + made.progress.records == COUNT
    assert made.is_complete == (unread == 0)


def test_search_ends_when_its_time_is_over(bootstrap):
    times = iter(range(0, 10**6, 50))
    _, made, _ = run(bootstrap, [("value", "nowhere")], limits=Limits(seconds=60),
                     seconds=lambda: next(times))
    assert made.reason == TIME and made.left
    assert made.progress.seconds_left is None or made.progress.seconds_left >= 0


def test_deleted_records_do_not_make_a_search_fail(broker):
    async def go():
        async with Admin(bootstrap_servers=broker.bootstrap) as admin:
            await admin.create_topics([NewTopic("purged", 1)])
            with Producer(bootstrap_servers=broker.bootstrap) as producer:
                for _ in range(10):
                    producer.send("purged", b"x")
            chosen = filters.parse([("left", "0:0-10"), ("order", "oldest")])
            from pylog.client import TopicPartition
            await admin.delete_records({TopicPartition("purged", 0): 4})
            ranges, _ = await search.plan(admin.cluster, "purged", chosen)
            made = RecordSearch(admin.cluster, "purged", chosen, ranges, Limits(), time.monotonic)
            rows = [row async for found in made.found() for row in found.rows()]
            return [row.offset for row in rows], made
    offsets, made = asyncio.run(go())
    assert offsets == [4, 5, 6, 7, 8, 9] and made.deleted == [(0, 0, 4)] and made.is_complete


def test_damaged_batch_is_named_and_left_out(tmp_path):
    with Broker(tmp_path) as broker:
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
            for part in (b"one", b"two", b"three"):
                producer.send("damaged", part)
                producer.flush()
        log = next(tmp_path.rglob("damaged-0/*.log"))
        data = bytearray(log.read_bytes())
        data[data.index(b"two")] ^= 1
        log.write_bytes(data)

        async def go():
            chosen = filters.parse([("order", "oldest")])
            async with Admin(bootstrap_servers=broker.bootstrap) as admin:
                ranges, _ = await search.plan(admin.cluster, "damaged", chosen)
                made = RecordSearch(admin.cluster, "damaged", chosen, ranges, Limits(),
                                    time.monotonic)
                return [row.value async for one in made.found() for row in one.rows()], made
        values, made = asyncio.run(go())
    assert values[0] == b"one" and b"two" not in values
    assert not made.is_complete and made.skipped[0][0][0] == 1
    assert "offset 1" in made.errors[0]


def test_number_of_searches_is_limited():
    searches = search.Searches(1)
    with searches.slot():
        with pytest.raises(PageError, match="Too many searches"), searches.slot():
            pass
    with searches.slot():
        assert searches.running == 1
