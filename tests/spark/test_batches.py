import pytest

from pylog.client import Admin, TopicPartition
from pylog.client.errors import KafkaError
from pylog.client.spark import batches
from pylog.client.spark.ranges import DataLossError
from pylog.client.spark.source import PylogSource
from pylog.client.spark.splits import COLUMNS
from spark.records import Content
from tests.spark.topics import filled


def source(broker, topic, **given):
    return PylogSource({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **given})


def read(made, names=None):
    """Return all rows as a table, and the number of tasks."""
    import pyarrow as pa
    from pyspark.sql.types import StructType

    schema = made.schema() if names is None else StructType(
        [field for field in COLUMNS if field.name in names])
    reader = made.reader(schema)
    parts = reader.partitions()
    found = [batch for part in parts for batch in reader.read(part)]
    return pa.Table.from_batches(found), len(parts)


@pytest.fixture(scope="module")
def loaded(target):
    filled(target.bootstrap, "batches", Content(3, keys=20, headers=True), 20_000)
    return target


def test_each_record_is_read_once_by_several_tasks_per_partition(loaded):
    found, tasks = read(source(loaded, "batches", splitbytes="300000"))
    assert tasks > 4 and found.num_rows == 20_000
    places = set(zip(found.column("partition").to_pylist(), found.column("offset").to_pylist()))
    assert len(places) == 20_000


def test_columns_have_sparks_types_and_the_connectors_order(loaded):
    found, _ = read(source(loaded, "batches", includeheaders="true"))
    assert found.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp",
                                  "timestampType", "headers"]
    assert str(found.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
    row = found.slice(0, 1).to_pylist()[0]
    assert row["topic"] == "batches" and row["timestampType"] == 0
    assert [header["key"] for header in row["headers"]] == ["pylog"]


def test_counting_reads_only_batch_headers(loaded, monkeypatch):
    monkeypatch.setattr(batches, "ColumnReader", None)
    found, _ = read(source(loaded, "batches", minpartitions="5"), ["partition", "offset"])
    assert found.num_rows == 20_000
    offsets = found.filter(found.column("partition").to_numpy() == 0).column("offset").to_pylist()
    assert offsets == list(range(len(offsets)))


def test_offset_range_within_batches_returns_only_its_rows(loaded):
    bounds = {"startingoffsets": '{"batches": {"0": 17, "1": 5}}',
              "endingoffsets": '{"batches": {"0": 1001, "1": 6}}'}
    for names in (None, ["partition", "offset"]):
        found, _ = read(source(loaded, "batches", **bounds), names)
        offsets = found.column("offset").to_pylist()
        assert sorted(offsets) == sorted([*range(17, 1001), 5])


def test_times_bound_a_read(loaded):
    assert read(source(loaded, "batches", startingtimestamp="-1 hour"))[0].num_rows == 20_000
    assert source(loaded, "batches", endingtimestamp="-1 hour").reader(COLUMNS).partitions()[
        0].offset_range is None


def test_pattern_selects_all_matching_topics(loaded):
    filled(loaded.bootstrap, "pattern-1", Content(3), 100)
    filled(loaded.bootstrap, "pattern-2", Content(3), 50)
    made = PylogSource({"kafka.bootstrap.servers": loaded.bootstrap,
                        "subscribepattern": "pattern-.*"})
    assert read(made)[0].num_rows == 150


@pytest.mark.parametrize("names", [None, ["offset"]])
def test_missing_records_are_data_loss_unless_allowed(loaded, names):
    topic = "truncated" if names is None else "truncated-heads"
    filled(loaded.bootstrap, topic, Content(3), 4000, partitions=1)
    bounds = {"startingoffsets": f'{{"{topic}": {{"0": 10}}}}'}
    with Admin(bootstrap_servers=loaded.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 1000})
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        read(source(loaded, topic, **bounds), names)
    found, _ = read(source(loaded, topic, failondataloss="false", **bounds), names)
    assert found.column("offset").to_pylist() == list(range(1000, 4000))


def test_a_missing_topic_is_named(loaded):
    with pytest.raises(KafkaError, match="nowhere"):
        source(loaded, "nowhere").reader(COLUMNS).partitions()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read_whole(loaded, codec):
    topic = f"packed-{codec}"
    filled(loaded.bootstrap, topic, Content(3), 3000, **{"compression.type": codec})
    found, _ = read(source(loaded, topic, splitbytes="20000"))
    assert found.num_rows == 3000
