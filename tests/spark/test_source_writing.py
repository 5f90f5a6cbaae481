"""The writer of one task, without Spark."""

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pylog.client.producer.producer import Producer
from pylog.client.spark import writing
from pylog.client.spark.formats import formats
from spark import cluster
from tests.client.reading import read_topic


def writer(target, topic, schema, **given):
    shape = StructType()
    for name, kind in schema.items():
        shape.add(name, kind)
    return writing.BatchWriter({"bootstrap.servers": target.bootstrap}, topic, formats(given),
                               shape)


@pytest.mark.parametrize("gathered_bytes", [1, 100, 1 << 20])
def test_small_batches_go_together_and_keep_their_order(target, monkeypatch, gathered_bytes):
    monkeypatch.setattr(writing, "GATHERED_BYTES", gathered_bytes)
    topics = [f"gather-{gathered_bytes}-{number}" for number in range(2)]
    for topic in topics:
        cluster.create_topic({"bootstrap.servers": target.bootstrap}, topic, 1)
    calls = []
    true_send = Producer.send_arrow
    monkeypatch.setattr(Producer, "send_arrow", lambda self, data, *given, **more: (
        calls.append(data.num_rows), true_send(self, data, *given, **more))[1])
    batches = [pa.RecordBatch.from_pydict({
        "topic": [topics[number % 2], topics[0]], "value": [b"%d-a" % number, b"%d-b" % number]})
        for number in range(100)]
    made = writer(target, "", {"topic": "string", "value": "binary"})
    assert made.write(iter(batches)).records == 200
    wanted = {topic: [value.as_py() for batch in batches for name, value in zip(
        batch.column("topic").to_pylist(), batch.column("value")) if name == topic]
        for topic in topics}
    for topic in topics:
        found = read_topic(target.bootstrap, topic, 1)[0]
        assert [row[2] for row in found] == wanted[topic]
    assert sum(calls) == 200 and (len(calls) < 10) == (gathered_bytes == 1 << 20)


def test_an_empty_task_writes_nothing(target):
    assert writer(target, "none", {"value": "string"}).write(iter([])).records == 0


def test_json_of_many_batches_is_one_record_a_row(target):
    topic = "gather-json"
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, topic, 1)
    made = writer(target, topic, {"value": StructType().add("id", "long")}, valueformat="json")
    batches = [pa.RecordBatch.from_pydict({"value": [{"id": number}, None]})
               for number in range(20)]
    assert made.write(iter(batches)).records == 40
    assert [row[2] for row in read_topic(target.bootstrap, topic, 1)[0]] == [
        one for number in range(20) for one in (b'{"id":%d}' % number, None)]
