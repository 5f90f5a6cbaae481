"""Transactions of Python clients: aiokafka, kafka-python, librdkafka.

More clients: docs/reference/compatibility.md.
"""

import pytest

from tests.compat import client_aiokafka, client_confluent, client_kafka_python, flows
from tests.wire.talk import create_topic, unique

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": 200, "offsets.topic.num.partitions": 4}
CLIENTS = {"aiokafka": client_aiokafka.Client, "kafka-python": client_kafka_python.ClientOf3,
           "librdkafka": client_confluent.Client}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", CLIENTS)
def test_records_and_offsets_are_copied_in_transactions(target, name):
    topic = unique(f"moved-{name}")
    create_topic(target.port, topic)
    flows.transactions(CLIENTS[name](target.bootstrap), topic)
