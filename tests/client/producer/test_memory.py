"""Memory of a producer does not grow with the number of records sent."""

import os

import pyarrow as pa
import pytest

from pylog.client.producer.producer import Producer
from tests.client.reading import new_topic
from tests.fixtures.brokers import rss_bytes

pytestmark = [pytest.mark.memory, pytest.mark.timeout(300)]
ROUND = 100_000
GROWTH_BYTES_MAX = 24 << 20


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_memory_is_flat_over_rounds_of_records_and_tables(brokerd, codec):
    topic = new_topic(brokerd.bootstrap, 3)
    table = pa.table({"value": pa.array([b"x" * 100] * ROUND)})
    marks = []
    with Producer(bootstrap_servers=brokerd.bootstrap, compression_type=codec,
                  buffer_memory=16 << 20) as producer:
        for _ in range(8):
            for i in range(ROUND):
                producer.send(topic, b"y" * 100, b"%d" % (i % 100))
            producer.send_arrow(table, topic)
            producer.flush(60)
            marks.append(rss_bytes(os.getpid()))
    assert marks[-1] - marks[2] < GROWTH_BYTES_MAX, marks
