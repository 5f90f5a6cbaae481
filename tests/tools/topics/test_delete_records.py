"""Records are deleted before an offset or a time, after a preview and a confirmation."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from pylog.client.types import TopicPartition
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.session import ToolError
from pylog.tools.groups import groups
from pylog.tools.topics import delete_records
from tests.tools.groups.test_groups import records
from tests.tools.support import run, topic_of
from tests.wire.talk import append


def starts(broker, topic: str) -> list:
    rows = run("offsets", topic, "--json", broker=broker).json
    return [row["start_offset"] for row in sorted(rows, key=lambda row: row["partition"])]


def filled(broker) -> str:
    topic = topic_of(broker, 2)
    for partition in (0, 1):
        for age_s in (600, 60):
            append(broker.port, topic, records(5, int(time.time() - age_s) * 1000), partition)
    return topic


def test_records_before_an_offset_are_deleted(target):
    topic = filled(target)
    asked = ["topics", "delete-records", f"{topic}:1", "--before", "7"]
    shown = run(*asked, "--dry-run", "--json", broker=target).json
    assert shown["executed"] is False and shown["partitions"] == [
        {"topic": topic, "partition": 1, "start_offset": 0, "new_start_offset": 7,
         "end_offset": 10, "records": 7}]
    assert "--yes is required" in run(*asked, broker=target, fails=True).err
    assert starts(target, topic) == [0, 0]
    assert "7 records deleted" in run(*asked, "--yes", broker=target).out
    assert starts(target, topic) == [0, 7]
    assert "deleted" not in run(*asked, broker=target).out


def test_records_before_a_time_and_all_of_them_are_deleted(target):
    topic = filled(target)
    run("topics", "delete-records", topic, "--before", "-5m", "--yes", broker=target)
    assert starts(target, topic) == [5, 5]
    run("topics", "delete-records", f"{topic}:0", "--before", "end", "-y", broker=target)
    assert starts(target, topic) == [10, 5]
    run("topics", "delete-records", topic, "--before", "1000", "-y", broker=target)
    assert starts(target, topic) == [10, 10]


def test_missing_partition_is_reported(target):
    topic = topic_of(target, 2)
    for text in (f"{topic}:7", f"{topic}:x", f"{topic}:0,7"):
        assert "has no partition" in run("topics", "delete-records", text, "--before", "end",
                                         broker=target, fails=True).err


def told(monkeypatch, of_time):
    """A partition with offsets 0 to 9, in which the time has the offset `of_time`."""
    async def offsets(cluster, wanted, isolation=0):
        known = {cluster_queries.EARLIEST: (0, -1), cluster_queries.LATEST: (10, -1)}
        return {part: known.get(time_ms, of_time) for part, time_ms in wanted.items()}

    monkeypatch.setattr(cluster_queries, "offsets", offsets)
    return SimpleNamespace(cluster=None), [TopicPartition("t", 0)]


@pytest.mark.parametrize(("of_time", "offset"), [
    ((3, 5), 3), ((-1, -1), 10), ("NOT_LEADER_OR_FOLLOWER", None)])
def test_unknown_offset_of_a_time_is_not_treated_as_the_end(monkeypatch, of_time, offset):
    admin, parts = told(monkeypatch, of_time)
    session = SimpleNamespace(now_ms=lambda: 1_000_000)
    for work in (
            lambda: delete_records._wanted(session, admin, "-1s", dict.fromkeys(parts, 10)),
            lambda: groups._targets(admin, parts, {}, None, None, None, 5)):
        if offset is None:
            with pytest.raises(ToolError, match="t-0: NOT_LEADER_OR_FOLLOWER"):
                asyncio.run(work())
            continue
        found = asyncio.run(work())
        assert (found[parts[0]] if isinstance(found, dict) else found[0]["new_offset"]) == offset


def test_unknown_end_offset_is_reported(monkeypatch):
    async def ends(cluster, parts):
        return {parts[0]: "REQUEST_TIMED_OUT"}, {parts[0]: 10}

    monkeypatch.setattr(cluster_queries, "offset_bounds", ends)
    with pytest.raises(ToolError, match="t-0: REQUEST_TIMED_OUT"):
        asyncio.run(cluster_queries.known_offset_bounds(None, [TopicPartition("t", 0)]))
