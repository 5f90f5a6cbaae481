"""Streaming queries over topics that are re-created or deleted: results of our source, and of the
stock connector as a control.
"""

from collections import Counter

import pytest

from pylog.client import Admin, NewTopic
from tests.client.reading import new_topic
from tests.spark.test_source_data_loss import delete, fill, recreate

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
TRIGGERS = {"available now": {"availableNow": True},
            "processing time": {"processingTime": "0 seconds"}}


@pytest.fixture(params=list(TRIGGERS))
def query(request, spark, target, tmp_path):
    """Run a query on one checkpoint until it has read everything. Return the values it read."""
    seen = {"pylog": Counter(), "kafka": Counter()}

    def run(kind, pattern, loss):
        out = str(tmp_path / f"out-{kind}")
        frame = (spark.readStream.format(kind).option("subscribePattern", pattern)
                 .option("kafka.bootstrap.servers", target.bootstrap)
                 .option("kafka.metadata.max.age.ms", "1000")
                 .option("startingOffsets", "earliest").option("failOnDataLoss", loss).load())
        started = (frame.selectExpr("string(value)").writeStream.format("parquet")
                   .option("path", out).option("checkpointLocation", str(tmp_path / kind))
                   .trigger(**TRIGGERS[request.param]).start())
        try:
            if request.param == "available now":
                started.awaitTermination()
            else:
                started.processAllAvailable()
        finally:
            started.stop()
        values = Counter(row[0] for row in spark.read.parquet(out).collect())
        added, seen[kind] = values - seen[kind], values
        return sorted(added.elements())

    return run


def is_data_loss(query, kind, pattern):
    """Return True if a run with failOnDataLoss=true fails because of lost data."""
    try:
        query(kind, pattern, "true")
    except Exception as failure:
        assert "failOnDataLoss" in str(failure), failure
        return True
    return False


@pytest.mark.parametrize("count", [35, 5], ids=["longer", "shorter"])
def test_recreated_topic_is_reported_as_data_loss(target, query, count):
    topic = new_topic(target.bootstrap)
    old = fill(target, topic, "old", 20)
    for kind in ("pylog", "kafka"):
        assert query(kind, topic, "true") == old
    recreate(target, topic)
    new = fill(target, topic, "new", count)
    assert is_data_loss(query, "pylog", topic)
    assert query("pylog", topic, "false") == new
    # The connector skips the new topic's records below the old offset, or all of them.
    assert query("kafka", topic, "false") == new[20:]


def test_deleted_topic_beside_another(target, query):
    topic = new_topic(target.bootstrap)
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.create_topics([NewTopic(f"{topic}-b", 1, 1)])
    old = fill(target, topic, "a", 4) + fill(target, f"{topic}-b", "b", 4)
    for kind in ("pylog", "kafka"):
        assert query(kind, f"{topic}.*", "true") == old
    delete(target, f"{topic}-b")
    more = fill(target, topic, "more", 3)
    assert is_data_loss(query, "pylog", f"{topic}.*")
    for kind in ("pylog", "kafka"):
        assert query(kind, f"{topic}.*", "false") == more
