"""Both formats, Spark's unmodified connector and ours, through the same queries."""

import json

import pytest

from pylog.client import Admin, Producer, TopicPartition
from spark import cluster
from spark.records import Content
from tests.client.reading import await_markers
from tests.spark.topics import filled, sent, values

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
FORMATS = ["kafka", "pylog"]
TRIGGERS = {"available now": {"availableNow": True},
            "processing time": {"processingTime": "0 seconds"}}


@pytest.fixture(scope="module")
def topics(target):
    # Without keys a producer stays with one partition for a while: set the partition explicitly.
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, "matrix-a", 2)
    sent(target.bootstrap, "matrix-a", [
        (value, key, number % 2)
        for number, (value, key) in enumerate(values(Content(1), 0, 0, 2000))])
    filled(target.bootstrap, "matrix-b", Content(1), 1000)
    return target


def reader(spark, broker, kind, stream=False, **given):
    made = (spark.readStream if stream else spark.read).format(kind)
    made = made.option("kafka.bootstrap.servers", broker.bootstrap)
    for name, value in given.items():
        made = made.option(name.replace("_", "."), value)
    return made


@pytest.mark.parametrize("kind", FORMATS)
def test_bounds_are_given_by_name_offset_or_time(spark, topics, kind):
    def count(**given):
        return reader(spark, topics, kind, subscribe="matrix-a", **given).load().count()

    assert count(startingOffsets="earliest", endingOffsets="latest") == 2000
    part = json.dumps({"matrix-a": {"0": 7, "1": -2}})
    ends = json.dumps({"matrix-a": {"0": 17, "1": 5}})
    assert count(startingOffsets=part, endingOffsets=ends) == 15
    assert count(startingTimestamp="1000") == 2000


@pytest.mark.parametrize("kind", FORMATS)
def test_times_bound_a_read_per_partition_too(spark, target, kind):
    topic = f"timed-{kind}"
    # The records are years old: retention would remove them during the test.
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, topic, 2, {"retention.ms": "-1"})
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        for second in range(10):
            for partition in (0, 1):
                producer.send(topic, b"v", partition=partition,
                              timestamp=1_700_000_000_000 + second * 1000)

    def count(**given):
        return reader(spark, target, kind, subscribe=topic, **given).load().count()

    def times(*seconds):
        return json.dumps({topic: {str(number): 1_700_000_000_000 + 1000 * second
                                   for number, second in enumerate(seconds)}})

    assert count(startingOffsetsByTimestamp=times(3, 8)) == 9
    assert count(startingOffsetsByTimestamp=times(3, 8), endingOffsetsByTimestamp=times(5, 9)) == 3
    assert count(startingTimestamp="1700000004500", endingTimestamp="1700000006000") == 2
    late = {"startingOffsetsByTimestamp": times(3, 99)}
    assert count(startingOffsetsByTimestampStrategy="latest", **late) == 7
    with pytest.raises(Exception, match="timestamp|time"):
        count(**late)


@pytest.mark.parametrize("kind", FORMATS)
def test_patterns_splits_and_assignments(spark, topics, kind):
    both = reader(spark, topics, kind, subscribePattern="matrix-[ab]", minPartitions="9").load()
    assert both.count() == 3000 and both.rdd.getNumPartitions() >= 9
    one = reader(spark, topics, kind, assign='{"matrix-a": [1]}').load()
    assert {row[0] for row in one.select("partition").distinct().collect()} == {1}


def test_both_formats_give_the_same_rows(spark, topics):
    def rows(kind):
        frame = reader(spark, topics, kind, subscribe="matrix-b", includeHeaders="true").load()
        return frame.columns, sorted(
            map(repr, frame.selectExpr("hex(key)", "hex(value)", "topic", "partition", "offset",
                                       "timestamp", "timestampType").collect()))

    assert rows("kafka") == rows("pylog")


@pytest.mark.parametrize("trigger", list(TRIGGERS))
@pytest.mark.parametrize("kind", FORMATS)
def test_a_truncated_log_is_data_loss_unless_that_is_allowed(
        spark, target, tmp_path, kind, trigger):
    topic = f"lost-{kind}-{trigger}".replace(" ", "-")
    filled(target.bootstrap, topic, Content(1), 1000, partitions=1)

    def run(**given):
        frame = reader(spark, target, kind, True, subscribe=topic, startingOffsets="earliest",
                       **given).load().select("offset")
        query = (frame.writeStream.format("parquet").option("path", f"{tmp_path}/out")
                 .option("checkpointLocation", f"{tmp_path}/state")
                 .trigger(**TRIGGERS[trigger]).start())
        try:
            if trigger == "available now":
                query.awaitTermination()
            else:
                query.processAllAvailable()
        finally:
            query.stop()

    run()
    sent(target.bootstrap, topic, [(b"later", None, 0)] * 10)
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 1005})
    with pytest.raises(Exception, match="failOnDataLoss"):
        run()
    run(failOnDataLoss="false")
    found = sorted(row[0] for row in spark.read.parquet(f"{tmp_path}/out").collect())
    assert found == [*range(1000), *range(1005, 1010)]


@pytest.mark.parametrize("kind", FORMATS)
def test_file_sink_is_exactly_once_across_restarts(spark, target, tmp_path, kind):
    topic = f"files-{kind}"
    filled(target.bootstrap, topic, Content(1), 1000)
    for extra in range(2):
        frame = reader(spark, target, kind, True, subscribe=topic, startingOffsets="earliest",
                       maxOffsetsPerTrigger="300").load().select("partition", "offset")
        query = (frame.writeStream.format("parquet").option("path", f"{tmp_path}/out")
                 .option("checkpointLocation", f"{tmp_path}/state")
                 .trigger(availableNow=True).start())
        query.awaitTermination()
        found = spark.read.parquet(f"{tmp_path}/out").collect()
        assert len(found) == len(set(found)) == 1000 + 10 * extra
        sent(target.bootstrap, topic, [(b"more", None, 1)] * 10)


@pytest.mark.parametrize("kind", FORMATS)
def test_stream_copies_every_record_from_topic_to_topic(spark, target, tmp_path, kind):
    source, sink = f"from-{kind}", f"to-{kind}"
    filled(target.bootstrap, source, Content(1), 500)
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, sink, 2)
    frame = reader(spark, target, kind, True, subscribe=source, startingOffsets="earliest").load()
    query = (frame.select("key", "value").writeStream.format(kind).option("topic", sink)
             .option("kafka.bootstrap.servers", target.bootstrap)
             .option("checkpointLocation", f"{tmp_path}/state").trigger(availableNow=True).start())
    query.awaitTermination()
    ends = cluster.ends({"bootstrap.servers": target.bootstrap}, sink)
    assert sum(ends.values()) == 500


def test_rows_select_their_topics(spark, target):
    for topic in ("own-1", "own-2"):
        cluster.create_topic({"bootstrap.servers": target.bootstrap}, topic, 1)
    rows = [("own-1", "k", "v1"), ("own-2", "k", "v2"), ("own-1", None, "v3")]
    (spark.createDataFrame(rows, "topic STRING, key STRING, value STRING").write.format("pylog")
     .mode("append").option("kafka.bootstrap.servers", target.bootstrap).save())
    found = reader(spark, target, "kafka", subscribe="own-1,own-2").load()
    assert sorted(row[0] for row in found.selectExpr(
        "concat(topic, ' ', string(value))").collect()) == ["own-1 v1", "own-1 v3", "own-2 v2"]


@pytest.mark.parametrize("kind", FORMATS)
def test_read_committed_skips_aborted_records(spark, target, kind):
    topic = f"aborted-{kind}"
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, topic, 1)
    with Producer(bootstrap_servers=target.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for keep in (True, False, True):
            producer.begin_transaction()
            for _ in range(10):
                producer.send(topic, b"yes" if keep else b"no")
            producer.flush()  # Otherwise an abort drops them unsent.
            producer.commit_transaction() if keep else producer.abort_transaction()
    await_markers(target.bootstrap, topic)
    for level, count in (("read_committed", 20), ("read_uncommitted", 30)):
        frame = reader(spark, target, kind, subscribe=topic, kafka_isolation_level=level).load()
        assert frame.count() == count
        assert frame.select("offset").distinct().count() == count
