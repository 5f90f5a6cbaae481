"""kill -9 of the broker under our own producer: no acknowledged record is lost or duplicated."""

import struct
import time

import pyarrow as pa
import pytest

from pylog.client.producer.producer import Producer
from tests.client.reading import new_topic, read_topic
from tests.fixtures.brokers import Brokerd

pytestmark = pytest.mark.timeout(200)


@pytest.mark.parametrize("tables", [False, True], ids=["records", "tables"])
def test_an_idempotent_producer_survives_kills_without_loss_or_doubles(
        tmp_path, random_source, tables):
    with Brokerd(tmp_path) as broker:
        topic = new_topic(broker.bootstrap)
        deliveries, number = [], 0
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=2, compression_type="lz4",
                      reconnect_backoff_max_ms=100, batch_size=4000,
                      delivery_timeout_ms=60_000) as producer:
            for _ in range(3):
                end_s = time.monotonic() + random_source.uniform(0.3, 0.8)
                while time.monotonic() < end_s:
                    values = [struct.pack(">q", number + i) + bytes(200) for i in range(50)]
                    if tables:
                        deliveries.append(producer.send_arrow(pa.table({"value": values}), topic))
                    else:
                        deliveries += [producer.send(topic, value) for value in values]
                    number += 50
                    time.sleep(0.002)
                broker.kill()
                broker.start()
            producer.flush(60)
        rows = read_topic(broker.bootstrap, topic, 1)[0]
        assert [struct.unpack_from(">q", row[2])[0] for row in rows] == list(range(number))
        if not tables:
            assert [delivery.result(0).offset for delivery in deliveries] in (
                [row[0] for row in rows],)
        else:
            assert sum(count for one in deliveries for *_, count in one.result(0)) == number
        assert broker.alarms() == []
