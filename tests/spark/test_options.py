import pytest

from pylog.client.errors import ConfigError
from pylog.client.spark.options import read_options, write_options
from pylog.client.spark.planning import Planner
from pylog.client.spark.ranges import OffsetRange
from pylog.client.spark.stream_reader import limited
from pylog.client.types import TopicPartition

NOW = 1_700_000_000_000
BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}


def options(streaming=False, **given):
    return read_options({**BASE, **given}, streaming, NOW)


def test_defaults_are_the_connectors():
    batch, stream = options(), options(True)
    assert (batch.starting.kind, batch.ending.kind) == ("earliest", "latest")
    assert stream.starting.kind == "latest"
    assert batch.fail_on_data_loss and not batch.headers


@pytest.mark.parametrize("text, seconds", [
    ("-10 minutes", 600), ("-1 hour", 3600), ("- 90s", 90), ("-2 days", 172_800),
    ("-500 ms", 0.5), ("-1.5 hours", 5400)])
def test_a_relative_time_counts_back_from_now(text, seconds):
    for name in ("startingOffsets", "startingTimestamp"):
        assert options(**{name: text}).starting.time_ms == NOW - seconds * 1000


def test_offsets_and_times_per_partition_are_json():
    found = options(startingOffsets='{"t": {"0": 23, "1": -2}}').starting
    assert found.given == {("t", 0): 23, ("t", 1): -2}
    found = options(startingOffsetsByTimestamp='{"t": {"0": 1000}}').starting
    assert (found.kind, found.given) == ("times", {("t", 0): 1000})


def test_global_timestamp_overrides_offsets_as_in_the_connector():
    found = options(startingTimestamp="5", startingOffsets="latest").starting
    assert (found.kind, found.time_ms) == ("times", 5)


@pytest.mark.parametrize("given, word", [
    ({"subscribePattern": "x"}, "exactly one"), ({"startingOffset": "earliest"}, "startingoffset"),
    ({"startingOffsets": "soon"}, "startingOffsets"), ({"endingOffsets": "earliest"}, "ending"),
    ({"startingOffsets": '{"t": 3}'}, "JSON"), ({"minPartitions": "0"}, "minpartitions"),
    ({"failOnDataLoss": "maybe"}, "failondataloss"), ({"startingTimestamp": "-3 moons"}, "moons"),
    ({"kafka.bootstrap.servers": ""}, "bootstrap"),
    ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets")])
def test_invalid_option_is_reported_in_one_line_with_its_name(given, word):
    with pytest.raises(ConfigError) as refused:
        options(**given)
    assert word in str(refused.value) and "\n" not in str(refused.value)


def test_a_streaming_query_has_no_ending():
    with pytest.raises(ConfigError):
        options(True, endingOffsets="latest")


def test_a_writer_passes_kafka_settings_to_the_producer():
    found = write_options({**{k: v for k, v in BASE.items() if k != "subscribe"},
                           "kafka.acks": "1", "topic": "out"})
    assert found.settings["acks"] == "1" and found.topic == "out"


def test_a_streaming_query_may_have_a_name():
    # Spark passes its own options to the sink.
    found = write_options({"kafka.bootstrap.servers": "h:1", "topic": "out", "queryName": "totals",
                           "checkpointLocation": "state/"})
    assert found.topic == "out" and "queryname" not in found.settings


def test_trigger_limit_is_divided_among_pending_partitions_exactly():
    starts = {TopicPartition("t", number): 100 for number in range(3)}
    ends = {TopicPartition("t", 0): 1100, TopicPartition("t", 1): 110, TopicPartition("t", 2): 100}
    found = limited(starts, ends, 101)
    assert sum(found.values()) - 300 == 101
    assert found["t", 2] == 100 and found["t", 1] in (101, 102)
    assert limited(starts, ends, 5000) == ends


@pytest.mark.parametrize("given", [{"splitBytes": "1000"}, {"minPartitions": "7"},
                                   {"maxRecordsPerPartition": "13"}, {"minPartitions": "1000"}])
def test_splits_partition_the_offset_range(given, monkeypatch):
    planner = Planner.__new__(Planner)
    planner.options = options(**given)
    monkeypatch.setattr(Planner, "_record_bytes", lambda *_: {("t", 0): 50, ("t", 1): 50})
    whole = [OffsetRange("t", 0, 10, 110), OffsetRange("t", 1, 0, 30)]
    found = planner.split(whole)
    assert len(found) >= 7
    for one in whole:
        own = [part for part in found if part.partition == one.partition]
        assert own[0].start == one.start and own[-1].end == one.end
        assert all(a.end == b.start for a, b in zip(own, own[1:]))
        assert all(part.start < part.end for part in own)
