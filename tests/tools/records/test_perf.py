"""Performance commands: results exist, are consistent, and nothing is left behind."""

import random

import pytest

from pylog.tools.records.histogram import Latencies
from tests.tools.support import run, topic_of


def names(broker) -> list:
    return [row["topic"] for row in run("topics", "list", "--json", broker=broker).json]


@pytest.mark.parametrize("columns", [False, True])
def test_producing_is_measured(brokerd, columns):
    if columns:
        pytest.importorskip("pyarrow")
    before = names(brokerd)
    told = run("perf", "produce", "-n", 5000, "-s", 50, "-z", "lz4", "--json",
               *(["--columns"] if columns else []), broker=brokerd).json
    assert told["records"] == 5000 and told["bytes"] == 250_000
    assert told["records_per_second"] == pytest.approx(5000 / told["seconds"], rel=0.05)
    assert names(brokerd) == before
    if not columns:
        found = told["latency_ms"]
        assert 0 < found["p50"] <= found["p90"] <= found["p99"] <= found["p99.9"] <= found["max"]


@pytest.mark.parametrize("columns", [False, True])
def test_rejected_records_are_not_measured(brokerd, columns):
    if columns:
        pytest.importorskip("pyarrow")
    topic = topic_of(brokerd, 1, **{"max.message.bytes": "1000"})
    ended = run("perf", "produce", "-t", topic, "-n", 200, "-s", 2000, "--json",
                *(["--columns"] if columns else []), broker=brokerd, fails=True)
    assert ended.out == "" and len(ended.err.splitlines()) == 1


@pytest.mark.parametrize("columns", [False, True])
def test_consuming_is_measured(brokerd, columns):
    if columns:
        pytest.importorskip("numpy")
    topic = topic_of(brokerd, 3)
    run("perf", "produce", "-n", 3000, "-s", 10, "-t", topic, broker=brokerd)
    assert topic in names(brokerd)
    more = ["--columns"] if columns else []
    told = run("perf", "consume", "-t", topic, "--json", *more, broker=brokerd).json
    assert (told["records"], told["bytes"]) == (3000, 30_000)
    assert run("perf", "consume", "-t", topic, "-n", 10, "--json", broker=brokerd).json[
        "records"] >= 10


def test_end_to_end_latency_is_measured(brokerd):
    told = run("perf", "end-to-end", "-n", 100, "-r", 500, broker=brokerd).out
    assert told.startswith("100 records in ") and "latency ms: mean " in told and "#" in told


@pytest.mark.kafka
def test_measuring_works_on_apache_kafka(kafka):
    for what in ("produce", "end-to-end"):
        assert run("perf", what, "-n", 100, "--json", broker=kafka).json["records"] == 100


def test_percentiles_are_within_a_bucket_of_the_truth(random_source):
    values = sorted(random_source.lognormvariate(-6, 2) for _ in range(5000))
    latencies = Latencies()
    for value in random.sample(values, len(values)):
        latencies.add(value)
    for share in (1, 50, 90, 99, 99.9):
        truth = values[max(0, -(-int(len(values) * share) // 100) - 1)]
        assert truth * 0.96 <= latencies.percentile(share) <= truth * 1.04
    assert latencies.percentile(100) == values[-1] == latencies.max_s
    assert sum(int(line.split()[-1]) for line in latencies.drawing()) == 5000
    assert Latencies().summary() == {} and Latencies().drawing() == []
