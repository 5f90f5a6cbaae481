"""Topics that are created, changed and deleted: directories of their partitions, settings and
roles.
"""

import os
import threading
import time

import pytest

from pylog._native.records import batch
from pylog.log import recovery
from pylog.log.partition_logs import Role
from pylog.log.recovery import Recovery
from pylog.metadata.controller.partitions.topic_branches import AT_OFFSET
from tests.log.test_manager import append as append_any
from tests.log.test_recovery import entries
from tests.log.test_topic_branches import TIME, branch, node
from tests.metadata.node import Node

__all__ = ["node"]


@pytest.fixture
def two(tmp_path):
    made = Node(f"{tmp_path / 'one'},{tmp_path / 'other'}")
    yield made
    made.stop()


def test_topic_deletion_frees_its_directory(two):
    two.create("a", "b")
    places = [two.logs.dir_index(name, 0) for name in "ab"]
    assert sorted(places) == [0, 1]
    for turn in range(3):
        two.delete("b")
        two.create("b")
        assert two.logs.dir_index("b", 0) == places[1], turn
    two.delete("a", "b")
    two.create("c", partitions=4)
    assert sorted(two.logs.dir_index("c", index) for index in range(4)) == [0, 0, 1, 1]


def test_a_partition_that_could_not_be_opened_is_counted_once_when_it_is(tmp_path, monkeypatch):
    made = Node(f"{tmp_path / 'one'},{tmp_path / 'other'}", log_initial_task_delay_ms="0")
    refused = True
    is_free = made.logs._hints.is_free
    monkeypatch.setattr(made.logs._hints, "is_free",
                        lambda *where: not refused and is_free(*where))
    made.create("late")
    assert made.logs.get("late", 0) is None
    refused = False
    assert made.logs.finish_moves() == ["late"] and made.logs.finish_moves() == []
    assert made.logs.get("late", 0).is_leader
    assert sorted(made.logs.disks.loads) == [0, 1]
    made.stop()


def test_added_partitions_use_the_emptiest_directory(two):
    two.create("a", "b", "c")
    by_place = [[two.logs.dir_index(name, 0) for name in "abc"].count(place) for place in (0, 1)]
    assert sorted(by_place) == [1, 2]
    two.logs.assume("a", [Role(True, 0, 1)] * 2)
    assert two.logs.dir_index("a", 1) == by_place.index(1)
    assert two.logs.get("a", 1).is_leader and two.logs.get("a", 2) is None


def _flushed(log, upto) -> bool:
    deadline = time.monotonic() + 10
    while log.flushed_offset < upto and time.monotonic() < deadline:
        time.sleep(0.01)
    return log.flushed_offset == upto


def test_changed_flush_interval_is_applied_by_every_upkeep(tmp_path):
    made = Node(tmp_path)
    made.create("a")
    append_any(made, "a")
    made.logs.upkeep(made.now_ms() + 1000)
    made.logs.configure("a", {"flush.ms": "10"})
    made.logs.upkeep(made.now_ms() + 2000)
    assert _flushed(made.logs.get("a", 0), 3)
    made.stop()


def test_reset_flush_interval_no_longer_applies(tmp_path):
    made = Node(tmp_path)
    made.create("a", configs={"flush.ms": "10"})
    append_any(made, "a")
    made.logs.configure("a", {})
    for _ in range(3):
        made.logs.upkeep(made.now_ms() + 1000)
    time.sleep(0.05)
    assert made.logs.get("a", 0).flushed_offset == 0
    made.stop()


def test_broker_flush_interval_applies_to_topics_without_own_value(tmp_path):
    made = Node(tmp_path)
    made.create("a")
    made.create("own", configs={"flush.ms": "9223372036854775807"})
    append_any(made, "a")
    append_any(made, "own")
    assert made.settings.set_dynamic({"log.flush.interval.ms": "10"}, {}) is None
    made.logs.reconfigure()
    made.logs.upkeep(made.now_ms() + 1000)
    assert _flushed(made.logs.get("a", 0), 3) and made.logs.get("own", 0).flushed_offset == 0
    made.stop()


def test_deleted_topic_is_neither_open_nor_offline(two):
    two.create("a", partitions=2)
    two.logs.directories[two.logs.dir_index("a", 0)].fail(5)
    lost, = two.logs.take_failed()
    assert lost == ("a", 0) and two.logs.take_failed() == []
    assert two.logs.is_offline("a", 0) and not two.logs.is_offline("a", 1)
    assert two.logs.any_offline("a") and two.logs.offline == [("a", 0)]
    two.logs.delete("a")
    assert not two.logs.any_offline("a") and two.logs.offline == [] and two.logs.get("a", 1) is None


def test_log_directories_are_described(two):
    two.create("a", "b")
    rows = two.logs.describe()
    assert [(os.path.basename(path), offline) for path, offline, _ in rows] == [
        ("one", False), ("other", False)]
    by_place = [[(name, index) for name, index, _ in found] for _, _, found in rows]
    for name in "ab":
        assert (name, 0) in by_place[two.logs.dir_index(name, 0)]
    two.logs.directories[1].fail(5)
    assert [offline for _, offline, _ in two.logs.describe()] == [False, True]


def test_stop_reports_whether_all_partitions_were_recovered(monkeypatch):
    monkeypatch.setattr(recovery, "WAIT_S", 0.05)
    ready = Recovery(entries("a", "b"), [], 1, lambda name: None)
    ready.begin()
    assert ready.stop() is True
    going_on = threading.Event()
    slow = Recovery(entries("slow", "never"), [], 1, lambda name: going_on.wait(30))
    slow.begin()
    waited = threading.Thread(target=slow.wait, args=("never",))
    waited.start()
    threading.Timer(0.1, going_on.set).start()
    assert slow.stop() is False and slow.left == 0
    waited.join(20)
    assert not waited.is_alive()


def _batches(node, topic):
    one, found = node.logs.get(topic, 0), []
    data = one.read(0, 1 << 20)
    for _, head in batch.walk(data):
        found.append((head.base_offset, head.last_offset_delta + 1, head.base_sequence,
                      head.producer_id, head.producer_epoch))
    return found


@pytest.mark.parametrize("end", [11, 12, 13, 15, 19, 20])
def test_batch_truncated_by_a_branch_stays_one_producer_batch(node, end):
    node.create("whole")
    log = node.logs.get("whole", 0)
    for base, count in ((0, 10), (10, 10)):
        rows = [(b"k", b"v", TIME + base + number, ()) for number in range(count)]
        log.append(batch.build(rows, producer_id=9, producer_epoch=1, base_sequence=base),
                   node.now_ms())
    assert branch(node, "cut", "whole", {AT_OFFSET: end}).error == 0
    assert _batches(node, "cut") == [(0, 10, 0, 9, 1), (10, end - 10, 10, 9, 1)]
    again = batch.build([(b"k", b"v", TIME, ())] * (end - 10), producer_id=9, producer_epoch=1,
                        base_sequence=10)
    assert node.logs.get("cut", 0).append(again, node.now_ms())[0] == 10, "a repetition"


def test_a_branch_shares_the_indexes_of_its_source(node, tmp_path):
    branch(node, "copy", "source")
    for extension in ("log", "index", "timeindex"):
        for file in sorted((tmp_path / "source-0").glob(f"*.{extension}"))[:-1]:
            assert file.samefile(tmp_path / "copy-0" / file.name)
