import argparse
import json

import pytest

from spark import load, report, validate
from spark.plan import Plan, Rate, read_outcome
from spark.records import Content
from tests.spark.topics import sent, values

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
CONTENT = Content(5, "uniform:40:160", keys=50, skew=1.1, headers=True)


def loaded(spark, broker, topic, directory, **given):
    from spark import cluster

    settings = {"bootstrap.servers": broker.bootstrap}
    cluster.create_topic(settings, topic, 3)
    plan = Plan(topic, settings, given.pop("content", CONTENT),
                **{"records": 3000, "generators": 2, **given})
    return load.load(plan, str(directory), spark=spark)


def judged(spark, broker, topic, directory, *more):
    options = validate.arguments().parse_args([
        "--bootstrap", broker.bootstrap, "--topic", topic, "--manifest", str(directory), *more])
    return validate.validate(options, validate.expectation(options)[0], spark)[0]


@pytest.mark.parametrize("writer, reader", [("pylog", "kafka"), ("kafka", "pylog")])
def test_load_of_either_engine_validates_with_the_other(spark, target, tmp_path, writer, reader):
    outcome = loaded(spark, target, f"by-{writer}", tmp_path, engine=writer)
    assert outcome.counts == {0: 1500, 1: 1500}
    found = judged(spark, target, f"by-{writer}", tmp_path, "--engine", reader)
    assert found.good, found.lines()
    assert found.records == 3000 and found.bytes == outcome.bytes


def test_manifest_contains_the_offsets_of_each_batch(spark, target, tmp_path):
    outcome = loaded(spark, target, "manifest", tmp_path)
    rows = spark.read.parquet(f"{tmp_path}/batches").collect()
    assert sum(row.batch_records for row in rows) == 3000
    assert all(row.sent_ms <= row.acked_ms for row in rows)
    ends = {}
    for row in sorted(rows, key=lambda row: row.base_offset):
        assert row.base_offset == ends.get(row.partition, 0)
        ends[row.partition] = row.base_offset + row.batch_records
    assert ends == {number: end for number, end in outcome.ends.items() if end}
    assert read_outcome(str(tmp_path)) == outcome


def test_stopped_stream_resumes_from_its_position(spark, target, tmp_path):
    state = str(tmp_path / "state")
    loaded(spark, target, "resumed", tmp_path / "first", content=Content(5))
    stream = ["--stream", "--checkpoint", state, "--offsets-per-trigger", "1000", "--from-start"]
    assert judged(spark, target, "resumed", tmp_path / "first", *stream).good
    kept = set((tmp_path / "state" / "summaries").iterdir())
    sent(target.bootstrap, "resumed", [(values(Content(5), 0, 7, 1)[0][0], None, 0)])
    found = judged(spark, target, "resumed", tmp_path / "first", *stream)
    assert found.faults["doubled"] == 1 and found.records == 3001
    assert len(set((tmp_path / "state" / "summaries").iterdir()) - kept) == 1


@pytest.mark.parametrize("engine", validate.ENGINES)
def test_damaged_topic_fails_and_each_fault_is_reported(spark, target, tmp_path, engine):
    topic = f"damaged-{engine}"
    loaded(spark, target, topic, tmp_path, content=Content(5))
    good = values(Content(5), 0, 10, 2)
    sent(target.bootstrap, topic, [(good[0][0], None, 0), (good[1][0][:-1] + b"\0", None, 1),
                                   (values(Content(6), 0, 0, 1)[0][0], None, 2)])
    outcome = read_outcome(str(tmp_path))
    found = judged(spark, target, topic, tmp_path, "--engine", engine)
    assert {name: count for name, count in found.faults.items() if count} == {
        "doubled": 1, "corrupted": 1, "foreign": 1}
    page = report.html(topic, found, outcome, 1.0)
    assert "Bad" in page and "corrupted at 1/" in page
    assert json.loads(found.json())["good"] is False


@pytest.mark.parametrize("engine", ["pylog", "kafka"])
def test_markers_of_transactions_explain_their_gaps(spark, target, tmp_path, engine):
    outcome = loaded(spark, target, f"transactions-{engine}", tmp_path, transactional=True)
    assert sum(outcome.ends.values()) > 3000
    found = judged(spark, target, f"transactions-{engine}", tmp_path, "--engine", engine)
    assert found.good and any(part.gaps for part in found.partitions), found.lines()


def test_a_paced_load_by_the_stock_connector_keeps_its_rate(spark, target, tmp_path):
    outcome = loaded(spark, target, "paced", tmp_path, engine="kafka", records=0, duration_s=2.0,
                     rate=Rate(high=500.0))
    assert sum(outcome.counts.values()) == 1000
    assert outcome.ended_ms - outcome.started_ms > 1800
    assert judged(spark, target, "paced", tmp_path).good


def test_expectations_can_be_given_without_a_manifest():
    options = validate.arguments().parse_args(
        ["--bootstrap", "h:1", "--topic", "t", "--seed", "9", "--records", "5"])
    assert isinstance(options, argparse.Namespace)
    assert validate.expectation(options)[0].counts == {0: 3, 1: 2}
