"""Offsets without a record: compacted records, aborted transactions, their markers."""

import json
import time

import pytest
from confluent_kafka import Producer as OtherProducer

from pylog.client.spark.source import PylogSource
from pylog.client.spark.splits import COLUMNS
from tests.client.reading import await_markers, new_topic, read_topic

BROKER_SETTINGS = {"log.cleaner.backoff.ms": "50", "log.cleaner.threads": "1"}
RECORDS, KEYS = 6000, 150
OFFSETS_ONLY = ["partition", "offset"]


def source(broker, topic, **given):
    return PylogSource({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **{
        name.replace("_", "."): str(value) for name, value in given.items()}})


def read(made, names=None):
    """Return (offsets in order, number of tasks)."""
    from pyspark.sql.types import StructType

    schema = made.schema() if names is None else StructType(
        [field for field in COLUMNS if field.name in names])
    reader = made.reader(schema)
    parts = reader.partitions()
    found = [offset for part in parts for batch in reader.read(part)
             for offset in batch.column("offset").to_pylist()]
    return found, len(parts)


def true_offsets(broker, topic, isolation="read_committed"):
    return [row[0] for row in read_topic(broker.bootstrap, topic, 1, isolation)[0]]


@pytest.fixture(scope="module")
def compacted(brokerd):
    """A topic whose oldest segments were compacted."""
    topic = new_topic(brokerd.bootstrap, **{
        "cleanup.policy": "compact", "segment.bytes": str(1 << 20),
        "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "50"})
    producer = OtherProducer({"bootstrap.servers": brokerd.bootstrap, "batch.num.messages": 37,
                              "linger.ms": 5, "queue.buffering.max.messages": 100_000})
    for number in range(RECORDS):
        # A few keys are never repeated: their records remain between wide gaps.
        key = b"once-%d" % number if number % 500 == 123 else b"%d" % (number % KEYS)
        producer.produce(topic, bytes(1000), key)
    assert producer.flush(30) == 0
    deadline = time.monotonic() + 60
    while len(true_offsets(brokerd, topic)) > RECORDS // 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    found = true_offsets(brokerd, topic)
    assert KEYS <= len(found) <= RECORDS // 2 and found[-1] == RECORDS - 1, len(found)
    return brokerd, topic


@pytest.mark.parametrize("names", [None, OFFSETS_ONLY], ids=["all columns", "offsets only"])
@pytest.mark.parametrize("given", [{}, {"minpartitions": 23}, {"maxrecordsperpartition": 50},
                                   {"splitbytes": 20_000}], ids=str)
def test_gaps_of_compaction_end_no_task_early_and_lose_nothing(compacted, names, given):
    broker, topic = compacted
    found, tasks = read(source(broker, topic, **given), names)
    assert found == true_offsets(broker, topic)
    assert tasks > 1 or not given


@pytest.mark.parametrize("names", [None, OFFSETS_ONLY], ids=["all columns", "offsets only"])
def test_bounds_may_lie_in_gaps(compacted, names):
    broker, topic = compacted
    there = true_offsets(broker, topic)
    low, high = max(zip(there, there[1:]), key=lambda pair: pair[1] - pair[0])
    assert high - low > 2
    for start, end in ((low + 1, high), (low + 1, high + 1), (low, high - 1), (0, low + 1),
                       (0, 0 + 1)):
        bounds = {"startingoffsets": json.dumps({topic: {"0": start}}),
                  "endingoffsets": json.dumps({topic: {"0": end}})}
        found, _ = read(source(broker, topic, **bounds), names)
        assert found == [offset for offset in there if start <= offset < end]


def test_stream_with_a_limit_skips_gaps(compacted):
    broker, topic = compacted
    made = source(broker, topic, startingoffsets="earliest", maxoffsetspertrigger=100)
    reader = made.streamReader(made.schema())
    try:
        found, start = [], reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        while True:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                break
            found += [offset for part in reader.partitions(start, end)
                      for batch in reader.read(part)
                      for offset in batch.column("offset").to_pylist()]
            start = end
    finally:
        reader.stop()
    assert found == true_offsets(broker, topic)


@pytest.fixture(scope="module")
def aborted(kafka):
    """Committed and aborted transactions in turn, with a non-transactional record after each."""
    topic = new_topic(kafka.bootstrap)
    writer = OtherProducer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic,
                            "batch.num.messages": 7})
    plain = OtherProducer({"bootstrap.servers": kafka.bootstrap})
    writer.init_transactions()
    for number in range(12):
        writer.begin_transaction()
        for record in range(50):
            writer.produce(topic, b"%d" % record)
        writer.flush()
        plain.produce(topic, b"plain")
        plain.flush()
        writer.commit_transaction() if number % 3 == 0 else writer.abort_transaction()
    await_markers(kafka.bootstrap, topic)
    return kafka, topic


@pytest.mark.kafka
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("names", [None, OFFSETS_ONLY], ids=["all columns", "offsets only"])
@pytest.mark.parametrize("given", [{}, {"minpartitions": 41}], ids=str)
def test_aborted_transactions_and_markers_are_no_loss(aborted, isolation, names, given):
    broker, topic = aborted
    made = source(broker, topic, kafka_isolation_level=isolation, **given)
    found, tasks = read(made, names)
    assert found == true_offsets(broker, topic, isolation)
    assert len(found) == (4 * 50 + 12 if isolation == "read_committed" else 12 * 51)
    assert tasks >= int(given.get("minpartitions", 1))


@pytest.mark.kafka
def test_open_transactions_are_not_read_as_committed(kafka):
    topic = new_topic(kafka.bootstrap)
    writer = OtherProducer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    plain = OtherProducer({"bootstrap.servers": kafka.bootstrap})
    plain.produce(topic, b"before")
    plain.flush()
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(topic, b"open")
    writer.flush()
    plain.produce(topic, b"after")
    plain.flush()
    assert read(source(kafka, topic, kafka_isolation_level="read_committed"))[0] == [0]
    assert read(source(kafka, topic))[0] == [0, 1, 2]
    writer.abort_transaction()
    await_markers(kafka.bootstrap, topic)
    assert read(source(kafka, topic, kafka_isolation_level="read_committed"))[0] == [0, 2]
