"""kill -9 under an unmodified client: librdkafka reconnects, without lost or duplicated records."""

import struct
import time

import pytest
from confluent_kafka import Producer

from tests.durability.load import read_all
from tests.fixtures.brokers import Brokerd
from tests.fixtures.child_environment import NO_LIBRDKAFKA
from tests.wire.talk import create_topic, unique

pytestmark = [pytest.mark.timeout(200), NO_LIBRDKAFKA]


def test_idempotent_librdkafka_producer_survives_kills_without_loss_or_duplicates(ram,
                                                                                  random_source):
    with Brokerd(ram) as broker:
        topic = unique("client-killed")
        create_topic(broker.port, topic)
        delivered: dict[int, int] = {}
        failed = []

        def on_delivery(error, message):
            if error is not None:
                failed.append(error)
            else:
                delivered[struct.unpack_from(">q", message.value())[0]] = message.offset()

        producer = Producer({
            "bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 2,
            "compression.type": "lz4", "reconnect.backoff.max.ms": 100,
            "log_level": 0, "message.timeout.ms": 60000})
        number = 0
        for _ in range(4):
            end_s = time.monotonic() + random_source.uniform(0.3, 0.8)
            while time.monotonic() < end_s:
                producer.produce(topic, struct.pack(">q", number) + bytes(200), partition=0,
                                 on_delivery=on_delivery)
                number += 1
                producer.poll(0)
                if number % 50 == 0:
                    time.sleep(0.002)
            broker.kill()
            broker.start()
        assert producer.flush(60) == 0
        assert failed == [] and len(delivered) == number
        rows = read_all(broker.port, topic, 0)
        assert [struct.unpack_from(">q", value)[0] for _, value in rows] == list(range(number))
        assert {struct.unpack_from(">q", value)[0]: offset for offset, value in rows} == delivered
        assert broker.alarms() == []
