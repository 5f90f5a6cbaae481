"""Partitions become available one by one after an unclean stop."""

import threading

import pytest

from pylog import supervisor
from pylog._native.log.log import LogDir
from pylog.log import partition_logs, recovery
from pylog.log.recovery import Recovery
from tests.log.test_manager import append
from tests.metadata.node import Node


def entries(*names):
    return [(name, 0, name) for name in names]


def test_internal_topics_are_opened_first(tmp_path):
    opened = []
    one = Recovery(entries("a", "b", "__consumer_offsets", "c"), [], 1, opened.append)
    one.begin()
    assert opened[0] == "__consumer_offsets"
    assert sorted(opened[1:]) == ["a", "b", "c"]
    assert (one.left, one.take_ready(), one.take_ready()) == (0, set(opened), set())


def test_start_does_not_wait_for_slow_recoveries(monkeypatch):
    monkeypatch.setattr(recovery, "WAIT_S", 0.05)
    going_on = threading.Event()
    one = Recovery(entries("slow", "quick"), [], 2,
                   lambda name: name == "quick" or going_on.wait(30))
    one.begin()
    assert (one.left, one.take_ready()) == (1, {"quick"})
    going_on.set()
    one.wait("slow")
    assert (one.left, one.take_ready()) == (0, {"slow"})


def test_progress_is_logged_until_recovery_ends(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(recovery, "WAIT_S", 0.01)
    monkeypatch.setattr(recovery, "REPORT_S", 0.02)
    caplog.set_level("INFO")
    told, opened = threading.Event(), []
    monkeypatch.setattr(recovery.log, "info", lambda _, extra: told.set() or opened.append(extra))
    one = Recovery(entries("slow"), [LogDir(tmp_path)], 1, lambda name: told.wait(30))
    one.begin()
    assert told.wait(30)
    assert opened[0] == {"ready": 0, "of": 1, "checked_mb": 0, "trusted_mb": 0}
    one.wait("slow")


def test_exception_while_opening_reaches_the_start(monkeypatch):
    monkeypatch.setattr(recovery, "WAIT_S", 3600)

    def fail(name):
        raise KeyError(name)

    with pytest.raises(KeyError):
        Recovery(entries("a"), [], 1, fail).begin()


@pytest.fixture
def held(monkeypatch):
    """Delay the opening of topic "slow" until the event is set."""
    monkeypatch.setattr(recovery, "WAIT_S", 0.05)
    going_on = threading.Event()
    open_log = partition_logs.open_log

    def slowly(directory, topic, *rest):
        if topic == "slow":
            going_on.wait(30)
        return open_log(directory, topic, *rest)

    monkeypatch.setattr(partition_logs, "open_log", slowly)
    yield going_on
    going_on.set()


def crashed(tmp_path, held):
    held.set()
    node = Node(tmp_path)
    node.create("slow")
    node.create("quick")
    append(node, "slow")
    append(node, "quick")
    node.crash()
    held.clear()
    return Node(tmp_path)


def test_recovered_partitions_are_served_during_recovery(tmp_path, held):
    node = crashed(tmp_path, held)
    assert node.logs.recovering == 1
    assert node.logs.get("slow", 0) is None
    assert append(node, "quick") == (3, 5)
    assert "slow" not in node.logs.take_recovered()
    held.set()
    node.logs._recovery.wait("slow")
    assert node.logs.take_recovered() == {"slow"}
    assert append(node, "slow") == (3, 5)
    node.stop()


def test_settings_and_deletes_of_a_topic_that_is_not_ready_come_into_force(tmp_path, held):
    node = crashed(tmp_path, held)
    node.logs.configure("slow", {"max.message.bytes": "10"})
    threading.Timer(0.1, held.set).start()
    node.logs._recovery.wait("slow")
    with pytest.raises(Exception, match="max.message.bytes|large|larger"):
        append(node, "slow", records=9, size=500)
    node.logs.delete("slow")
    assert not (tmp_path / "slow-0").exists()
    node.stop()


def test_stop_during_recovery_is_unclean(tmp_path, held):
    node = crashed(tmp_path, held)
    threading.Timer(0.1, held.set).start()
    node.stop()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    again = Node(tmp_path)
    assert again.logs.get("slow", 0).end_offset == again.logs.get("quick", 0).end_offset == 3
    again.stop()


def test_partition_whose_recovery_fails_after_the_start_is_counted_and_offline(
        tmp_path, held, monkeypatch):
    node = crashed(tmp_path, held)
    before = supervisor.failures().get(recovery.WORK, 0)
    assert (node.logs.recovering, node.logs.take_failed()) == (1, [])
    with monkeypatch.context() as planted:
        planted.setattr(partition_logs, "assume", None)  # Called once the log is open.
        held.set()
        node.logs._recovery.wait("slow")
    assert supervisor.failures()[recovery.WORK] == before + 1
    assert node.logs.is_offline("slow", 0) and node.logs.lacks_files("slow", 0)
    assert node.logs.take_failed() == [("slow", 0)]
    assert append(node, "quick") == (3, 5)
    node.stop()
    again = Node(tmp_path)
    assert again.logs.get("slow", 0).end_offset == 3
    again.stop()


def test_truncation_is_logged(tmp_path, held, caplog):
    held.set()
    node = Node(tmp_path)
    node.create("a")
    append(node, "a")
    node.crash()
    with open(tmp_path / "a-0" / f"{0:020d}.log", "ab") as file:
        file.write(bytes(77))
    again = Node(tmp_path)
    told, = [one for one in caplog.records if "end of a log was truncated" in one.getMessage()]
    assert (told.topic, told.partition, told.offset, told.bytes, told.reason) == (
        "a", "0", 3, 77, "zeros")
    again.stop()


def test_damaged_leader_epochs_are_read_from_the_batches_and_reported(tmp_path, caplog):
    node = Node(tmp_path)
    node.create("a")
    append(node, "a")
    epoch = node.logs.get("a", 0).last_epoch
    node.stop()
    path = tmp_path / "a-0" / recovery.EPOCHS
    path.write_text("rubbish")
    before = supervisor.failures().get(recovery.EPOCHS_WORK, 0)
    again = Node(tmp_path)
    one = again.logs.get("a", 0)
    assert one.epoch_of(0) == epoch
    again.logs.upkeep(again.now_ms())
    assert supervisor.failures()[recovery.EPOCHS_WORK] == before + 1
    found, = [record for record in caplog.records if hasattr(record, "renamed_to")]
    assert (found.path, found.renamed_to) == (str(path), f"{path}.damaged")
    assert (tmp_path / "a-0" / f"{recovery.EPOCHS}.damaged").read_text() == "rubbish"
    again.stop()
