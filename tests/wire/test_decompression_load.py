"""A Produce whose records decompress to far more than its own length must not stop other clients.
"""

import select
import struct

from pylog.protocol import api
from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.raw import Connection, frame, header
from tests.wire.talk import create_topic

MIB = 1 << 20
BATCHES = 400
VERSION = 7
CALLS_MIN = 50
TOPIC = "swollen"
ROW = struct.Struct(">ihqqq")


def test_other_clients_are_served_while_a_produce_inflates(tmp_path):
    swollen = raw.batch([raw.record(value=bytes(32 * MIB))], codec=raw.ZSTD)
    assert len(swollen) < 8192
    small = raw.produce_body(VERSION, TOPIC, [(0, raw.batch())], acks=1)
    settings = {"num.network.threads": 1, "num.io.threads": 2}
    with (Brokerd(tmp_path, settings) as broker, Connection(broker.port) as other,
          Connection(broker.port, wait_s=120) as producer):
        create_topic(broker.port, TOPIC)
        other.call(api.PRODUCE, VERSION, small)
        body = raw.produce_body(VERSION, TOPIC, [(0, swollen)] * BATCHES, acks=1)
        producer.correlation_id += 1
        producer.send(frame(header(api.PRODUCE, VERSION, producer.correlation_id) + body))
        calls = 0
        while not select.select([producer.socket], [], [], 0)[0]:
            other.call(api.PRODUCE, VERSION, small)
            calls += 1
        answer = producer.answer(api.PRODUCE, VERSION)
    rows_at = 4 + len(raw.string(TOPIC)) + 4
    rows = list(ROW.iter_unpack(answer[rows_at:rows_at + BATCHES * ROW.size]))
    assert [error for _, error, *_ in rows] == [0] * BATCHES
    assert calls >= CALLS_MIN
