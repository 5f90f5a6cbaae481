"""Totals and lists exclude partitions without a leader, mark and name them, and the command fails.
"""

import json
from functools import partial

import pytest

from pylog.tools.cli import totals
from pylog.tools.cli.output import cell, size
from pylog.tools.cli.session import ToolError
from tests.fixtures.clusters import Cluster, until
from tests.tools.groups.test_groups import records
from tests.tools.support import run
from tests.wire.talk import append

GROUPS = [f"group-{number}" for number in range(12)]


def partitions(cluster) -> dict[int, str | int]:
    """Return {partition of topic t: leader}."""
    rows = run("topics", "partitions", "t", "--json", broker=cluster).json
    return {row["partition"]: row["leader"] for row in rows}


def knows_the_topic(broker) -> bool:
    return "t" in run("topics", "list", broker=broker).out.split()


def has_dropped_broker_3(broker) -> bool:
    told = run("groups", "list", broker=broker, fails=True)
    return "none" in partitions(broker).values() and "broker 3" not in told.err


@pytest.fixture(scope="module")
def degraded(tmp_path_factory):
    """Yield (a cluster with broker 3 down, its partition of topic t, the groups that it
    coordinated).

    Every partition has one replica. Each partition of t has 200 unconsumed records.
    """
    with Cluster(tmp_path_factory.mktemp("totals"), settings={
            "offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 6,
            "default.replication.factor": 1, "min.insync.replicas": 1}) as cluster:
        run("topics", "create", "t", "-p", 3, "-r", 1, broker=cluster)
        for broker in cluster.brokers.values():
            until(partial(knows_the_topic, broker), 60, cluster.tails())
        until(lambda: set(partitions(cluster).values()) == {1, 2, 3}, 60, cluster.tails())
        leaders = partitions(cluster)
        for partition, leader in leaders.items():
            append(cluster.brokers[leader].port, "t", records(200, 1), partition)
        for name in GROUPS:
            run("groups", "reset-offsets", name, "-t", "t", "--to-earliest", "--execute",
                broker=cluster)
        served = {row["group"] for row in run("groups", "list", "--json", broker=cluster).json
                  if row["coordinator"] == 3}
        assert served and len(served) < len(GROUPS)
        cluster.brokers[3].kill()
        for broker in (cluster.brokers[1], cluster.brokers[2]):
            until(partial(has_dropped_broker_3, broker), 60, cluster.tails())
        [lost] = [number for number, leader in leaders.items() if leader == 3]
        yield cluster, lost, served


def missing(lost: int) -> list:
    return [{"topic": "t", "partition": lost, "error": "LEADER_NOT_AVAILABLE"}]


def test_total_lag_without_a_leaderless_partition_is_marked(degraded):
    cluster, lost, served = degraded
    name = next(name for name in GROUPS if name not in served)
    told = run("groups", "describe", name, "--json", broker=cluster, fails=True)
    assert told.json[0]["lag_records"] == 400
    assert told.json[0]["missing_partitions"] == missing(lost)
    assert f"cannot read 1 partition: t-{lost} (LEADER_NOT_AVAILABLE)" in told.err
    told = run("groups", "describe", name, broker=cluster, fails=True)
    assert "lag          >=400 records" in told.out and f"t-{lost} (" in told.err
    told = run("groups", "explain", name, "-s", "0.1", broker=cluster, fails=True)
    assert ">=400 records" in told.out and f"t-{lost} (" in told.err


def test_group_list_names_leaderless_partitions_of_records_and_of_groups(degraded):
    cluster, lost, served = degraded
    told = run("groups", "list", "--json", broker=cluster, fails=True)
    assert {row["group"] for row in told.json} == {*GROUPS} - served
    assert "groups are missing, namely those of __consumer_offsets:" in told.err
    told = run("groups", "list", "-l", "--json", broker=cluster, fails=True)
    for row in told.json:
        assert (row["lag_records"], row["missing_partitions"]) == (400, missing(lost))
    assert ">=400" in run("groups", "list", "-l", broker=cluster, fails=True).out
    for command in ("share", "streams"):
        assert "__consumer_offsets:" in run(command, "list", broker=cluster, fails=True).err


def test_topic_totals_without_a_leaderless_partition_are_marked(degraded):
    cluster, lost, _ = degraded
    told = run("topics", "list", "t", "-l", "--json", broker=cluster, fails=True)
    assert told.json[0]["records"] == 400 and told.json[0]["missing_partitions"] == missing(lost)
    assert f"t-{lost} (LEADER_NOT_AVAILABLE)" in told.err
    assert run("topics", "list", "t", "-l", broker=cluster, fails=True).out.count(">=") == 2
    told = run("topics", "describe", "t", "--json", broker=cluster, fails=True)
    assert told.json[0]["records"] == 400 and told.json[0]["missing_partitions"] == missing(lost)
    told = run("topics", "describe", "t", broker=cluster, fails=True)
    assert "records     >=400  (>=" in told.out and f"t-{lost} (" in told.err
    assert run("topics", "list", "t", broker=cluster).out  # This has no totals.


@pytest.mark.parametrize("words", [(), ("--at", "-1m"), ("--latest-time",)])
def test_offsets_of_a_leaderless_partition_are_an_error(degraded, words):
    cluster, lost, _ = degraded
    told = run("offsets", "t", *words, "--json", broker=cluster, fails=True)
    assert len(told.json) == 3 and f"cannot read 1 partition: t-{lost} (" in told.err


def test_total_is_a_lower_bound_if_a_term_is_unknown():
    assert totals.total([]) == 0 and totals.total([None]) is None
    assert cell(totals.total([3, 4])) == "7" and cell(totals.total([3, None, 4])) == ">=7"
    assert size(totals.total([2048, None])) == ">=2.0 KiB"
    assert json.dumps({"lag": totals.total([3, None])}) == '{"lag": 3}'


def test_missing_partitions_are_named_once_and_at_most_ten():
    rows = [{"topic": "t", "partition": number, "error": "E"} for number in range(12)]
    totals.check_complete([])
    with pytest.raises(ToolError, match=r"cannot read 12 partitions: t-0 \(E\), .* and 2 more"):
        totals.check_complete(rows * 2)
