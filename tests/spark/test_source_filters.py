"""Filter pushdown: the same rows with fewer bytes."""

import datetime
import pickle

import pytest
from pyspark.sql import datasource as D

from pylog.client.spark import ranges
from pylog.client.spark.source import PylogSource
from pylog.client.spark.splits import Split
from spark import cluster
from spark.records import Content
from tests.spark.topics import filled

UTC = datetime.UTC
PARTITIONS, COUNT = 4, 40_000
BASE_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def topics(target):
    filled(target.bootstrap, "filters", Content(3), COUNT, partitions=PARTITIONS)
    filled(target.bootstrap, "filters-other", Content(3), 100, partitions=1)
    return target


@pytest.fixture
def fetched(monkeypatch):
    """Count the bytes of records in the responses."""
    counted = []
    true_read = ranges.fetch_response.read

    def read(frame):
        answer = true_read(frame)
        counted.extend(len(row.records) for row in answer.partitions)
        return answer

    monkeypatch.setattr(ranges.fetch_response, "read", read)
    return counted


def source(target, topic="filters", **given):
    return PylogSource({"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic,
                        "pushfilters": "true", **given})


def read(made, *filters):
    """Return (rows of partition and offset, the filters that Spark must apply, number of tasks)."""
    reader = made.reader(made.schema())
    left = reader.pushFilters(list(filters))
    reader = pickle.loads(pickle.dumps(reader))
    parts = reader.partitions()
    rows = [row for part in parts for batch in reader.read(part) for row in zip(
        batch.column("topic").to_pylist(), batch.column("partition").to_pylist(),
        batch.column("offset").to_pylist(), batch.column("timestamp").to_pylist())]
    return rows, left, [part for part in parts if isinstance(part, Split) and part.offset_range]


def test_excluded_partition_is_not_read(topics, fetched):
    whole, _, _ = read(source(topics))
    everything = sum(fetched)
    del fetched[:]
    rows, left, tasks = read(source(topics), D.EqualTo(("partition",), 2),
                             D.IsNotNull(("partition",)))
    assert left == [] and len(tasks) == 1
    assert sorted(rows) == sorted(row for row in whole if row[1] == 2)
    assert 0 < sum(fetched) < everything / 2


@pytest.mark.parametrize("one, kept", [
    (D.In(("partition",), (0, 3, 9)), {0, 3}), (D.GreaterThan(("partition",), 1), {2, 3}),
    (D.GreaterThanOrEqual(("partition",), 1), {1, 2, 3}), (D.LessThan(("partition",), 1), {0}),
    (D.LessThanOrEqual(("partition",), 1), {0, 1}), (D.EqualNullSafe(("partition",), 1), {1}),
    (D.Not(D.EqualTo(("partition",), 1)), {0, 2, 3}),
    (D.Not(D.In(("partition",), (1, 2))), {0, 3}), (D.EqualTo(("partition",), 77), set())])
def test_conditions_on_the_partition_are_fulfilled_by_the_plan(topics, one, kept):
    _, left, tasks = read(source(topics), one)
    assert left == [] and {task.offset_range.partition for task in tasks} == kept


@pytest.mark.parametrize("one, kept", [
    (D.EqualTo(("topic",), "filters-other"), {"filters-other"}),
    (D.In(("topic",), ("filters", "x")), {"filters"}),
    (D.StringStartsWith(("topic",), "filters-"), {"filters-other"}),
    (D.StringEndsWith(("topic",), "other"), {"filters-other"}),
    (D.StringContains(("topic",), "zzz"), set()),
    (D.Not(D.StringContains(("topic",), "other")), {"filters"})])
def test_conditions_on_the_topic_are_fulfilled_by_the_plan(topics, one, kept):
    rows, left, _ = read(source(topics, "filters,filters-other"), one)
    assert left == [] and {row[0] for row in rows} == kept


@pytest.mark.parametrize("filters, low, high, exact", [
    ([D.GreaterThan(("offset",), 100), D.LessThanOrEqual(("offset",), 200)], 101, 201, True),
    ([D.GreaterThanOrEqual(("offset",), 100), D.LessThan(("offset",), 101)], 100, 101, True),
    ([D.EqualTo(("offset",), 7)], 7, 8, True), ([D.In(("offset",), (5, 6, 4))], 4, 7, True),
    ([D.In(("offset",), (5, 9))], 5, 10, False), ([D.LessThan(("offset",), -3)], 0, 0, True)])
def test_offset_filters_limit_fetched_bytes(topics, fetched, filters, low, high, exact):
    rows, left, _ = read(source(topics), *filters)
    assert sorted(row[1:3] for row in rows) == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(low, high)]
    assert (left == []) == exact
    # A batch or two of each partition, not all of it.
    assert sum(fetched) <= PARTITIONS * (2 << 20) and (sum(fetched) > 0) == (high > low)


def test_row_level_conditions_are_evaluated_by_spark(topics):
    kept = [D.Not(D.EqualTo(("offset",), 5)), D.EqualTo(("partition",), None),
            D.In(("partition",), (1, None)), D.EqualTo(("value", "id"), 1),
            D.EqualTo(("key",), b"x"), D.IsNull(("partition",)), D.IsNotNull(("value",)),
            D.EqualTo(("partition",), True), D.Not(D.IsNotNull(("partition",)))]
    rows, left, _ = read(source(topics), *kept)
    assert left == kept and len(rows) == COUNT


def test_time_filters_skip_older_records_at_the_start(target, fetched):
    from pylog.client import Producer

    # The records are years old: retention would remove them during the test.
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, "filters-times", 2,
                         {"retention.ms": "-1"})
    with Producer(bootstrap_servers=target.bootstrap, batch_size=4096) as producer:
        # Partition 0: times ascend except for one step back. Partition 1: all are old.
        for number in range(4000):
            late = 5 if number != 3000 else -2000
            producer.send("filters-times", bytes(500), partition=0,
                          timestamp=BASE_MS + late + number)
        producer.send("filters-times", b"old", partition=1, timestamp=BASE_MS - 1)
        producer.flush()
    whole, _, _ = read(source(target, "filters-times"))
    everything = sum(fetched)
    for filters in ([D.GreaterThanOrEqual, 0], [D.GreaterThan, -1], [D.GreaterThan, 0]):
        del fetched[:]
        bound = datetime.datetime.fromtimestamp(BASE_MS / 1000, UTC) + datetime.timedelta(
            milliseconds=2900, microseconds=filters[1])
        one = filters[0](("timestamp",), bound)
        rows, left, tasks = read(source(target, "filters-times"), one)
        assert left == [one]  # A later record may be older: Spark filters again.
        pick = {row for row in whole if (row[3] > bound if filters[0] is D.GreaterThan
                                         else row[3] >= bound)}
        assert pick <= set(rows) and {row[1] for row in rows} == {0}
        assert sum(fetched) < everything / 2
    upper = D.LessThan(("timestamp",), bound)
    assert read(source(target, "filters-times"), upper)[1] == [upper]


@pytest.fixture
def pushing(spark):
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield spark
    spark.conf.unset(name)


def frame(spark, target, **given):
    made = spark.read.format("pylog").option("subscribe", "filters").option(
        "kafka.bootstrap.servers", target.bootstrap)
    for name, value in given.items():
        made = made.option(name, value)
    return made.load()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_pushes_the_supported_filters(pushing, topics):
    found = frame(pushing, topics, pushFilters="true").where(
        "partition IN (1, 2) AND offset >= 10 AND offset < 30 AND topic = 'filters' "
        "AND timestamp > '2020-01-01'")
    assert found.rdd.getNumPartitions() == 2
    assert sorted(map(tuple, found.select("partition", "offset").collect())) == [
        (partition, offset) for partition in (1, 2) for offset in range(10, 30)]
    late = frame(pushing, topics, pushFilters="true").where("timestamp > now()")
    assert late.count() == 0


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_frame_that_is_used_twice_is_right_by_default(pushing, topics):
    whole = frame(pushing, topics)
    parts = [whole.where(f"partition = {number}").count() for number in range(PARTITIONS)]
    assert sum(parts) == whole.count() == COUNT
    assert whole.where("partition = 1").union(whole.where("partition = 2")).count() == (
        parts[1] + parts[2])


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_missing_spark_setting_is_named(spark, topics):
    with pytest.raises(Exception, match="spark.sql.python.filterPushdown.enabled"):
        frame(spark, topics, pushFilters="true").where("partition = 1").count()
