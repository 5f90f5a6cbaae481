"""Offsets without a record for a valid reason, produced by brokers: compaction, transactions."""

import time

import pytest

from pylog.client import Producer
from spark import cluster, load, validate
from spark.plan import Plan
from spark.records import Content
from tests.client.reading import await_markers
from tests.spark.test_batches import read, source
from tests.spark.topics import sent, values

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
BROKER_SETTINGS = {"log.cleaner.backoff.ms": "200"}
CLEANED_WITHIN_S = 90.0


def judged(spark, broker, topic, directory, *more):
    options = validate.arguments().parse_args([
        "--bootstrap", broker.bootstrap, "--topic", topic, "--manifest", str(directory), *more])
    return validate.validate(options, validate.expectation(options)[0], spark)[0]


def loaded(spark, broker, topic, directory, configs=None, **given):
    settings = {"bootstrap.servers": broker.bootstrap}
    cluster.create_topic(settings, topic, 2, configs)
    load.load(Plan(topic, settings, **given), str(directory), spark=spark)


def in_transaction(broker, topic, rows, commit):
    with Producer({"bootstrap.servers": broker.bootstrap,
                   "transactional.id": f"{topic}-test"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value, key in rows:
            producer.send(topic, value, key, partition=0)
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)()
    await_markers(broker.bootstrap, topic)


def test_compaction_explains_only_removed_records(spark, target, tmp_path):
    content, count = Content(5, "150", keys=40), 40_000
    loaded(spark, target, "compacted", tmp_path, {
        "cleanup.policy": "compact", "segment.bytes": str(1 << 20),
        "min.cleanable.dirty.ratio": "0.01"}, content=content, records=count)
    end_s = time.monotonic() + CLEANED_WITHIN_S
    while read(source(target, "compacted"), ["offset"])[0].num_rows == count:
        assert time.monotonic() < end_s, "nothing was compacted"
        time.sleep(0.5)
    for engine in validate.ENGINES:
        found = judged(spark, target, "compacted", tmp_path, "--engine", engine)
        assert found.good and found.superseded, found.lines()
        assert found.records + found.superseded == count
    sent(target.bootstrap, "compacted", [(values(content, 0, count - 1, 1)[0][0], b"odd", 0)])
    assert judged(spark, target, "compacted", tmp_path).faults["foreign"] == 1


def test_aborted_records_leave_gaps_that_are_explained(spark, target, tmp_path):
    content = Content(5, keys=9)
    loaded(spark, target, "aborted", tmp_path, content=content, records=2000)
    in_transaction(target, "aborted", values(content, 0, 5, 40), commit=False)
    for engine in validate.ENGINES:
        found = judged(spark, target, "aborted", tmp_path, "--engine", engine)
        assert found.good, found.lines()
        assert found.partitions[0].explained_gaps == 41  # The records and their marker.
    found = judged(spark, target, "aborted", tmp_path, "--isolation", "read_uncommitted")
    assert found.faults["doubled"] == 40


def test_records_committed_twice_are_reported_as_duplicates(spark, target, tmp_path):
    content = Content(5, keys=9)
    loaded(spark, target, "committed", tmp_path, content=content, records=2000,
           transactional=True)
    assert judged(spark, target, "committed", tmp_path).good
    in_transaction(target, "committed", values(content, 0, 5, 40), commit=True)
    found = judged(spark, target, "committed", tmp_path)
    assert found.faults["doubled"] == 40 and not found.faults["missing"] and not found.good


def test_an_open_transaction_is_not_awaited(spark, target, tmp_path):
    loaded(spark, target, "open", tmp_path, content=Content(5), records=2000)
    with Producer({"bootstrap.servers": target.bootstrap,
                   "transactional.id": "open-test"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("open", b"not yet", partition=0)
        producer.flush()
        for engine in validate.ENGINES:
            assert judged(spark, target, "open", tmp_path, "--engine", engine).good
        producer.abort_transaction()
