"""Batch boundaries of a streaming query, by calling the reader directly."""

import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from pylog.client.errors import ConfigError
from pylog.client.spark.checkpoint import Positions
from pylog.client.spark.options import read_options
from pylog.client.spark.source import PylogSource
from spark import cluster
from tests.spark.topics import sent


@pytest.fixture
def stream(target, request):
    topic = f"triggers-{abs(hash(request.node.name))}"
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, topic, 2)
    made = []

    def open_with(**given):
        one = PylogSource({"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic,
                           "startingoffsets": "earliest", **given})
        reader = one.streamReader(one.schema())
        made.append(reader)

        def grow(count):
            sent(target.bootstrap, topic, [(b"x", None, number % 2) for number in range(count)])

        return reader, grow

    yield open_with
    for reader in made:
        reader.stop()


def rows(offsets):
    return sum(Positions.from_json(offsets).offsets.values())


def test_batch_waits_for_the_minimum_of_records(stream):
    reader, grow = stream(minoffsetspertrigger="100")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(100)
    grow(10)
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert rows(first) == 10  # The first batch never waits.
    grow(99)
    assert reader.latestOffset(first, limit) == first
    grow(1)
    assert rows(reader.latestOffset(first, limit)) == 110


def test_a_batch_waits_no_longer_than_the_delay(stream):
    reader, grow = stream(minoffsetspertrigger="100", maxtriggerdelay="300ms")
    limit = reader.getDefaultReadLimit()
    grow(1)
    first = reader.latestOffset(reader.initialOffset(), limit)
    grow(5)
    assert reader.latestOffset(first, limit) == first
    time.sleep(0.4)
    assert rows(reader.latestOffset(first, limit)) == 6


def test_the_least_and_the_most_hold_together(stream):
    reader, grow = stream(minoffsetspertrigger="50", maxoffsetspertrigger="60")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(60)
    grow(200)
    first = reader.latestOffset(reader.initialOffset(), limit)
    second = reader.latestOffset(first, limit)
    third = reader.latestOffset(second, limit)
    assert [rows(one) for one in (first, second, third)] == [60, 120, 180]
    assert reader.latestOffset(third, limit) == third


def test_available_now_and_once_do_not_wait(stream):
    reader, grow = stream(minoffsetspertrigger="100")
    grow(1)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    grow(5)
    assert rows(reader.latestOffset(first, ReadAllAvailable())) == 6
    reader.prepareForTriggerAvailableNow()
    assert rows(reader.latestOffset(first, reader.getDefaultReadLimit())) == 6


@pytest.mark.parametrize("given, word", [
    ({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "9"}, "minOffsetsPerTrigger"),
    ({"minOffsetsPerTrigger": "0"}, "minoffsetspertrigger"),
    ({"minOffsetsPerTrigger": "10", "maxTriggerDelay": "soon"}, "maxTriggerDelay")])
def test_invalid_limits_are_reported_in_one_line(given, word):
    base = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
    with pytest.raises(ConfigError, match=word) as refused:
        read_options({**base, **given}, True, 0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text, ms", [("90s", 90_000), ("2 hours", 7_200_000), ("15", 15)])
def test_the_delay_is_a_time_as_spark_writes_it(text, ms):
    base = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
    assert read_options({**base, "maxTriggerDelay": text}, True, 0).trigger_delay_ms == ms
    assert read_options(base, True, 0).trigger_delay_ms == 900_000


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_passes_the_trigger_limit(spark, target, tmp_path):
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, "triggers", 1)
    sent(target.bootstrap, "triggers", [(b"x", None, 0)] * 10)
    frame = (spark.readStream.format("pylog").option("subscribe", "triggers")
             .option("kafka.bootstrap.servers", target.bootstrap)
             .option("startingOffsets", "earliest").option("minOffsetsPerTrigger", "100").load())
    query = (frame.select("offset").writeStream.format("parquet")
             .option("path", f"{tmp_path}/out").trigger(processingTime="200 milliseconds")
             .option("checkpointLocation", f"{tmp_path}/state").start())
    def seen(wanted, within_s):
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            found = sum(one["numInputRows"] for one in query.recentProgress)
            if found >= wanted:
                break
            time.sleep(0.1)
        return found

    try:
        counts = [seen(10, 60)]
        sent(target.bootstrap, "triggers", [(b"x", None, 0)] * 60)
        counts.append(seen(11, 2))
        sent(target.bootstrap, "triggers", [(b"x", None, 0)] * 60)
        counts.append(seen(130, 60))
    finally:
        query.stop()
    assert counts == [10, 10, 130]
