"""Spark's own connector reports errors of this broker with its known messages."""

import json

import pytest

from pylog.client import Admin, TopicPartition
from spark import cluster
from spark.records import Content
from tests.spark.test_connector import reader
from tests.spark.topics import filled, sent

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
TOPIC = "errors"
LOST = "Some data may have been lost because they are not available in Kafka any more"


@pytest.fixture(scope="module")
def cut(target):
    """A topic of 1000 records, of which the first hundred are deleted."""
    filled(target.bootstrap, TOPIC, Content(1), 1000, partitions=1)
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.delete_records({TopicPartition(TOPIC, 0): 100})
    return target


def at(offset):
    return json.dumps({TOPIC: {"0": offset}})


@pytest.mark.parametrize("given, text", [
    ({"subscribe": "nowhere"}, "UnknownTopicOrPartitionException: This server does not host this "
     "topic-partition"),
    ({}, "One of the following options must be specified for Kafka source"),
    ({"subscribe": TOPIC, "assign": at(0)}, "Only one of the following options can be specified"),
    ({"subscribe": TOPIC, "startingOffsets": "latest"},
     "starting offset can't be latest for batch queries on Kafka"),
    ({"subscribe": TOPIC, "startingOffsetsByTimestamp": at(99_999_999_999_999)},
     "No offset matched from request of topic-partition errors-0 and timestamp 99999999999999"),
    ({"subscribe": TOPIC, "startingOffsets": json.dumps({TOPIC: {"1": 0}})},
     "Partitions specified for Kafka start offsets don't match what are assigned"),
    ({"subscribe": TOPIC, "startingOffsets": at(10), "endingOffsets": at(500)}, LOST),
    ({"subscribe": TOPIC, "startingOffsets": at(5000), "endingOffsets": at(6000)}, LOST),
], ids=["topic", "none", "both", "latest", "time", "partition", "before", "behind"])
def test_a_read_that_cannot_be_done_fails_with_the_connectors_text(spark, cut, given, text):
    with pytest.raises(Exception) as failure:
        reader(spark, cut, "kafka", **given).load().count()
    assert text in str(failure.value)


def test_remaining_records_are_read_if_data_loss_is_allowed(spark, cut):
    assert reader(spark, cut, "kafka", subscribe=TOPIC, failOnDataLoss="false",
                  startingOffsets=at(10), endingOffsets=at(500)).load().count() == 400


@pytest.mark.parametrize("rows, shape, topic, text", [
    ([("v",)], "value STRING", "", "topic option required when no 'topic' attribute is present"),
    ([(None, "v")], "topic STRING, value STRING", "",
     "The Kafka message data sent to the producer contains a null topic"),
    ([("k",)], "key STRING", TOPIC, "Required attribute 'value' not found"),
    ([(1,)], "value INT", TOPIC, "value attribute unsupported type"),
])
def test_a_write_that_cannot_be_done_fails_with_the_connectors_text(
        spark, cut, rows, shape, topic, text):
    writer = (spark.createDataFrame(rows, shape).write.format("kafka").mode("append")
              .option("kafka.bootstrap.servers", cut.bootstrap))
    with pytest.raises(Exception) as failure:
        (writer.option("topic", topic) if topic else writer).save()
    assert text in str(failure.value)


def test_stream_fails_if_its_topic_is_deleted_or_recreated(spark, target, tmp_path):
    filled(target.bootstrap, "anew", Content(1), 100, partitions=1)

    def run(**given):
        frame = reader(spark, target, "kafka", True, subscribe="anew", startingOffsets="earliest",
                       **given).load().select("offset")
        query = (frame.writeStream.format("parquet").option("path", f"{tmp_path}/out")
                 .option("checkpointLocation", f"{tmp_path}/state")
                 .trigger(availableNow=True).start())
        query.awaitTermination()

    run()
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.delete_topics(["anew"])
    with pytest.raises(Exception, match="does not host this topic-partition"):
        run()
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, "anew", 1)
    sent(target.bootstrap, "anew", [(b"x", None, 0)] * 10)
    with pytest.raises(Exception, match="Partition anew-0 offset was changed from 100 to 10"):
        run()
    run(failOnDataLoss="false")


def test_overwriting_a_topic_is_rejected(spark, target):
    frame = spark.createDataFrame([(b"x",)], "value binary")
    with pytest.raises(Exception, match="cannot be overwritten"):
        (frame.write.format("pylog").mode("overwrite").option("topic", "any")
         .option("kafka.bootstrap.servers", target.bootstrap).save())
