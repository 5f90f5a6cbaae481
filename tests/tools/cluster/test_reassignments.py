"""Reassignments with progress, listed and cancelled; elections: on three in-process brokers."""

import json
import subprocess
import sys
import time

import pytest

from pylog.client import Admin
from pylog.client.types import TopicPartition
from pylog.testing import Cluster
from pylog.tools.cli.session import ToolError
from pylog.tools.cluster.reassignments import read, written
from tests.fixtures.clusters import until
from tests.tools.support import run


@pytest.fixture(scope="module")
def cluster():
    with Cluster(3) as found:
        yield found


def test_kafkas_json_is_read_and_written():
    plan = {TopicPartition("a", 0): [1, 2], TopicPartition("a", 1): [3]}
    assert read(written(plan)) == plan
    assert json.loads(written(plan))["partitions"][0] == {
        "topic": "a", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}


@pytest.mark.parametrize("text, words", [
    (b"{", "expected"), (b"[]", "expected"), (b'{"partitions": [{"topic": "a"}]}', "expected"),
    (b'{"partitions": [{"topic": "a", "partition": 0, "replicas": [1, 1]}]}', "different"),
    (b'{"partitions": [{"topic": "a", "partition": 0, "replicas": []}]}', "different"),
    (b'{"partitions": [{"topic": "a", "partition": 0, "replicas": ["1"]}]}', "different"),
    (b'{"partitions": [{"topic": "a", "partition": 0, "replicas": [1]},'
     b'{"topic": "a", "partition": 0, "replicas": [2]}]}', "twice"),
])
def test_invalid_plan_is_rejected(text, words):
    with pytest.raises(ToolError, match=words):
        read(text)


def test_replicas_move_by_a_plan_file_and_back(cluster, tmp_path):
    topic = cluster.create_topic("told", replicas=2)
    cluster.wait_in_sync(topic)
    before = described(cluster, topic)["replicas"]
    wanted = [next(node for node in (1, 2, 3) if node not in before), before[1]]
    plan, undo = tmp_path / "plan.json", tmp_path / "undo.json"
    plan.write_bytes(written({TopicPartition(topic, 0): wanted}))
    shown = patiently("cluster", "reassign", plan, "--undo", undo, "--wait", "--yes", "--json",
                      broker=cluster).json
    assert shown == [{"topic": topic, "partition": 0, "from": before, "to": wanted}]
    until(lambda: described(cluster, topic)["replicas"] == wanted)
    patiently("cluster", "reassign", undo, "--wait", "--yes", broker=cluster)
    until(lambda: described(cluster, topic)["replicas"] == before)
    assert "is already in place" in run("cluster", "reassign", undo, broker=cluster).out
    assert "no replica is moving" in run("cluster", "moves", broker=cluster).out
    assert "no replica is moving" in run("cluster", "cancel", broker=cluster).out


def test_a_move_that_cannot_end_is_listed_and_called_off(cluster, tmp_path):
    wait_unfenced(cluster)
    topic = cluster.create_topic("stuck", replicas=2)
    before = described(cluster, topic)["replicas"]
    other = next(node for node in (1, 2, 3) if node not in before)
    cluster.pause(other)
    try:
        alive = cluster[before[0]]
        plan = tmp_path / "plan.json"
        plan.write_bytes(written({TopicPartition(topic, 0): [before[0], other]}))
        run("cluster", "reassign", plan, "--yes", broker=alive)
        listed = run("cluster", "moves", topic, "--json", broker=alive).json
        assert [(row["adding"], row["removing"]) for row in listed] == [([other], [before[1]])]
        assert run("cluster", "moves", "other*", "--json", broker=alive).json == []
        run("cluster", "cancel", topic, "--yes", broker=alive)
        until(lambda: described(alive, topic)["replicas"] == before)
    finally:
        cluster.resume(other)


def test_waiting_for_a_move_fails_when_it_is_cancelled(cluster, tmp_path):
    wait_unfenced(cluster)
    topic = cluster.create_topic("waited", replicas=2)
    before = described(cluster, topic)["replicas"]
    other = next(node for node in (1, 2, 3) if node not in before)
    cluster.pause(other)
    try:
        alive = cluster[before[0]]
        waiting = subprocess.Popen(
            [sys.executable, "-c",
             "import sys; from pylog import cli; sys.exit(cli.pylog(sys.argv[1:]))",
             "cluster", "move", topic, "--to", f"{before[0]},{other}", "--wait", "--yes",
             "-b", alive.bootstrap], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            until(lambda: run("cluster", "moves", topic, "--json", broker=alive).json)
            run("cluster", "cancel", topic, "--yes", broker=alive)
            _, told = waiting.communicate(timeout=60)
        finally:
            waiting.kill()
    finally:
        cluster.resume(other)
    assert waiting.returncode == 1 and f"not moved: {topic}-0 is on brokers {before}" in told, told


def test_preferred_replica_is_elected(cluster):
    topic = cluster.create_topic("elected", replicas=3)
    cluster.wait_in_sync(topic)
    first = described(cluster, topic)["replicas"][0]
    cluster[first].stop()
    until(lambda: cluster.leader(topic) not in (-1, first))
    cluster[first].start()
    cluster.wait_in_sync(topic)
    rows = run("cluster", "elect", topic, "--json", broker=cluster[first]).json
    assert [(row["topic"], row["leader"], row["error"]) for row in rows] in (
        [(topic, first, None)], [])     # None: the controller has balanced the leaders itself.
    until(lambda: cluster.leader(topic) == first)
    assert "is already the leader" in run("cluster", "elect", topic, broker=cluster[first]).out
    assert "needs the names" in run("cluster", "elect", "--unclean", broker=cluster[first],
                                    fails=True).err


def wait_unfenced(cluster):
    """Wait until every broker may get replicas: another test may have paused one."""
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        until(lambda: len(admin.describe_cluster().nodes) == 3)


def patiently(*words, broker):
    """A broker that another test had paused or stopped may still be fenced."""
    end_s = time.monotonic() + 30
    while True:
        try:
            return run(*words, broker=broker)
        except AssertionError as refused:
            if "there is no broker" not in str(refused) or time.monotonic() > end_s:
                raise
            time.sleep(0.1)


def described(broker, topic: str) -> dict:
    return run("topics", "partitions", topic, "--json", broker=broker).json[0]
