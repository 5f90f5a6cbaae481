"""aio.scan() against a running broker: when its connections are closed."""

import asyncio
import contextlib
import gc
import threading

import pyarrow as pa
import pytest

from pylog.client import Producer, aio
from pylog.client.consumer import scan as blocking_scan
from tests.client.reading import new_topic

ROWS = 1000


@pytest.fixture(scope="module")
def filled(target):
    topic = new_topic(target.bootstrap)
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        producer.send_arrow(pa.table({"value": pa.array([b"%d" % i for i in range(ROWS)])}),
                            topic).result(30)
    return target.bootstrap, topic


@pytest.fixture
def closing_threads(monkeypatch):
    """Return a list to which each close of a scan's consumer adds its thread."""
    threads = []

    class Consumer(blocking_scan.Consumer):
        def close(self, timeout=5.0):
            super().close(timeout)
            threads.append(threading.current_thread())

    monkeypatch.setattr(blocking_scan, "Consumer", Consumer)
    return threads


def batches_of(filled):
    bootstrap, topic = filled
    return aio.scan(topic, batch_records_max=10, bootstrap_servers=bootstrap)


def closed_off_the_loop(threads):
    """Return how many consumers were closed, after a check of their threads."""
    assert threading.main_thread() not in threads
    return len(threads)


def test_a_whole_topic_is_read_once(filled, closing_threads):
    async def read():
        return [value async for rows in batches_of(filled) for value in rows["value"].to_pylist()]

    assert asyncio.run(read()) == [b"%d" % i for i in range(ROWS)]
    # The first one looked up the range.
    assert closed_off_the_loop(closing_threads) == 2


def test_connections_are_closed_when_aclosing_ends(filled, closing_threads):
    async def first():
        async with contextlib.aclosing(batches_of(filled)) as batches:
            assert (await anext(batches)).num_rows == 10
        assert closed_off_the_loop(closing_threads) == 2

    asyncio.run(first())


def test_scan_that_is_dropped_is_closed_off_the_event_loop(filled, closing_threads):
    async def first():
        async for _ in batches_of(filled):
            break
        gc.collect()
        async with asyncio.timeout(60):
            while len(closing_threads) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(first())
    assert closed_off_the_loop(closing_threads) == 2


def test_cancelled_scan_closes_its_connections(filled, closing_threads, monkeypatch):
    polled, go_on = threading.Event(), threading.Event()
    poll = blocking_scan.Consumer.poll_arrow

    def slow_poll(self, *given):
        polled.set()
        assert go_on.wait(60)
        return poll(self, *given)

    monkeypatch.setattr(blocking_scan.Consumer, "poll_arrow", slow_poll)

    async def cancelled():
        async def read():
            async for _ in batches_of(filled):
                raise AssertionError("the poll has not returned")

        reading = asyncio.create_task(read())
        while not polled.is_set():
            await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert closed_off_the_loop(closing_threads) == 2

    asyncio.run(cancelled())
