"""Memory of a consumer does not grow with the number of records read."""

import gc
import os
import tracemalloc

import pytest

from pylog.client import TopicPartition
from tests.client.support import BASE_MS, new_topic, put, reader
from tests.fixtures.brokers import rss_bytes

RECORDS = 50_000
GROWTH_BYTES_MAX = 24 << 20
TRACED_ROUNDS = 10
TRACED_GROWTH_BYTES_MAX = 4 << 20  # A few receive buffers; a leak of 8 bytes a record.


def traced_growth(consumer, part, how) -> int:
    """Return the growth in bytes of Python's memory over some rounds; tracing makes each round
    slow.
    """
    tracemalloc.start()
    try:
        read_through(consumer, part, how)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(TRACED_ROUNDS):
            read_through(consumer, part, how)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def read_through(consumer, part, how) -> None:
    consumer.seek(part, 0)
    done = 0
    while done < RECORDS:
        if how == "records":
            done += len(consumer.poll(5.0, 5000))
        else:
            done += consumer.poll_arrow(5.0).num_rows


@pytest.mark.memory
@pytest.mark.parametrize("how", ["records", "arrow"])
@pytest.mark.parametrize("rounds", [20, pytest.param(2000, marks=pytest.mark.slow)])  # 100 million
@pytest.mark.timeout(1200)
def test_memory_is_flat_over_many_records(brokerd, how, rounds):
    topic = new_topic(brokerd)
    part = TopicPartition(topic, 0)
    put(brokerd, topic, [(b"key", bytes(100), BASE_MS, [("h", b"1")])] * RECORDS,
        batch_records=1000)
    # A fetch waits at the end of the log when the next round begins.
    with reader(brokerd, topic, fetch_max_wait_ms=5) as consumer:
        for _ in range(5):
            read_through(consumer, part, how)
        gc.collect()
        before = rss_bytes(os.getpid())
        for _ in range(rounds):
            read_through(consumer, part, how)
        gc.collect()
        grown = rss_bytes(os.getpid()) - before
        traced = traced_growth(consumer, part, how)
    assert traced < TRACED_GROWTH_BYTES_MAX, f"{traced} bytes of Python objects more"
    assert grown < GROWTH_BYTES_MAX, f"{grown >> 20} MiB more after {rounds} rounds"
