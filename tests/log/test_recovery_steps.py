"""Recovery on threads that the test pauses, and log lines about damage."""

import threading
from collections import namedtuple
from types import SimpleNamespace

import pytest

from pylog import supervisor
from pylog.log import recovery
from pylog.log.recovery import Recovery

Damage = namedtuple("Damage", "kind partition segment offset position bytes reason")


@pytest.fixture(autouse=True)
def stopped(monkeypatch):
    """Return the directories whose recovery was stopped. Nothing is reported during the test."""
    found = []
    monkeypatch.setattr(recovery.damage_report, "stop_recovery", found.append)
    monkeypatch.setattr(recovery, "REPORT_S", 3600)
    return found


@pytest.mark.parametrize(("threads", "entries", "expected"), [
    (1, [0, 0, 0], 1), (2, [0, 0, 0], 2), (4, [0, 0, 0], 3), (2, [0, 1, 1, 1], 3), (2, [], 0)])
def test_each_directory_has_its_threads_but_no_more_than_it_has_logs(threads, entries, expected):
    one = Recovery([("t", number, None) for number in entries], [], threads, None)
    assert (len(one._threads), one.left, one.total) == (expected, len(entries), len(entries))


def test_a_topic_is_ready_with_the_last_of_its_partitions(monkeypatch):
    monkeypatch.setattr(recovery, "WAIT_S", 0)
    goes_on, second = threading.Event(), threading.Event()

    def open_one(entry):
        if entry == "last":
            second.set()
            goes_on.wait(30)

    one = Recovery([("t", 0, "last"), ("t", 0, "first")], [], 1, open_one)
    one.begin()
    assert second.wait(30)
    assert one.left == 1 and one.take_ready() == {"t"} and one._left == {"t": 1}
    goes_on.set()
    one.wait("t")
    assert one.left == 0 and one.take_ready() == {"t"}
    one.wait("other")


def test_requests_wait_until_internal_topics_are_recovered(monkeypatch):
    monkeypatch.setattr(recovery, "WAIT_S", 0)
    done, slow = [], threading.Event()

    def open_one(entry):
        if entry == "slow":
            slow.wait(30)
        else:
            done.append(entry)

    one = Recovery([("slow", 0, "slow"), ("__transaction_state", 1, "a"),
                    ("__consumer_offsets", 1, "b")], [], 1, open_one)
    one.begin()
    assert sorted(done) == ["a", "b"] and one._left == {"slow": 1}
    slow.set()
    one.wait("slow")


def test_stop_opens_no_more_logs_and_wakes_waiters(monkeypatch, stopped):
    monkeypatch.setattr(recovery, "WAIT_S", 0)
    began, opened = threading.Event(), []
    goes_on = threading.Event()

    def open_one(entry):
        opened.append(entry)
        began.set()
        goes_on.wait(30)

    one = Recovery([("t", 0, number) for number in range(3)], ["disk", "other"], 1, open_one)
    one.begin()
    assert began.wait(30)
    monkeypatch.setattr(recovery.damage_report, "stop_recovery", lambda directory: (
        stopped.append(directory), goes_on.set()))
    waiting = threading.Thread(target=one.wait, args=("t",))
    waiting.start()
    assert one.stop() is False
    waiting.join(30)
    assert not waiting.is_alive() and len(opened) == 1 and stopped == ["disk", "other"]
    assert one.left == 0 and not any(thread.is_alive() for thread in one._threads)


def test_stop_wakes_waiters_for_logs_that_will_not_open():
    began = threading.Event()

    class Changed(threading.Condition):
        def wait(self, timeout=None):
            # Holding its lock: the stop gets it only when this thread waits.
            began.set()
            return super().wait(timeout)

    one = Recovery([("t", 0, None)], [], 0, None)
    one._changed = Changed()
    waiting = threading.Thread(target=one.wait, args=("t",), daemon=True)
    waiting.start()
    assert began.wait(30)
    assert one.stop() is False
    waiting.join(30)
    assert not waiting.is_alive()


def test_unopenable_log_does_not_block_others(monkeypatch):
    monkeypatch.setattr(recovery, "WAIT_S", 3600)
    opened = []

    def open_one(entry):
        if entry == 1:
            raise KeyError("planted")
        opened.append(entry)

    one = Recovery([("t", 0, number) for number in range(3)], [], 1, open_one)
    with pytest.raises(KeyError, match="planted"):
        one.begin()
    one.wait("t")
    assert sorted(opened) == [0, 2] and one.left == 0


def test_checked_bytes_are_logged_in_whole_mebibytes(monkeypatch):
    monkeypatch.setattr(recovery.damage_report, "figures", lambda directory: {
        "recovered_bytes": directory, "trusted_bytes": 5 << 20})
    one = Recovery([], [(1 << 20) - 1, 1 << 20, 2 << 20], 1, None)
    assert (one._megabytes("recovered_bytes"), one._megabytes("trusted_bytes")) == (3, 15)


@pytest.mark.parametrize(("kind", "level", "text"), [
    ("cut", "WARNING", "the end of a log was truncated"),
    ("dropped", "ERROR", "the segment before it was truncated"),
    ("kept", "ERROR", "readers skip the damaged range")])
def test_damage_is_logged_with_its_position(monkeypatch, caplog, kind, level, text):
    monkeypatch.setattr(recovery.damage_report, "take", lambda directory: directory)
    damage = Damage(kind, "a-b-3", 20, 25, 100, 7, "crc")
    recovery.report([None, [damage]], ["/a", "/b"])
    record, = caplog.records
    assert record.levelname == level and text in record.message
    assert (record.directory, record.topic, record.partition, record.segment) == (
        "/b", "a-b", "3", f"{20:020d}.log")
    assert (record.offset, record.position, record.bytes, record.reason) == (25, 100, 7, "crc")


def test_internal_topics_are_opened_first(monkeypatch):
    monkeypatch.setattr(recovery, "WAIT_S", 3600)
    opened = []
    one = Recovery([(name, 0, name) for name in ("a", "__x", "b", "__y", "_c")], [], 1,
                   opened.append)
    one.begin()
    assert set(opened[:2]) == {"__x", "__y"} and set(opened[2:]) == {"a", "b", "_c"}


def test_a_process_that_ends_does_not_wait_for_recovery(monkeypatch):
    monkeypatch.setattr(recovery, "WAIT_S", 0)
    goes_on, began = threading.Event(), []

    def thread_once(*given):
        began.append(supervisor.thread_once(*given))
        return began[-1]

    monkeypatch.setattr(recovery, "supervisor", SimpleNamespace(thread_once=thread_once))
    one = Recovery([("t", 0, None)], [], 1, lambda entry: goes_on.wait(30))
    one.begin()
    goes_on.set()
    one.wait("t")
    assert {found.name: found.daemon for found in began} == {
        "recovery": True, "recovery-report": True}


def test_recovery_progress_is_logged_periodically(monkeypatch):
    monkeypatch.setattr(recovery, "REPORT_S", 0)
    monkeypatch.setattr(recovery.damage_report, "figures", lambda directory: {
        "recovered_bytes": 3 << 20, "trusted_bytes": 7 << 20})
    one = Recovery([("t", 0, None), ("t", 0, None), ("u", 0, None)], ["disk"], 0, None)
    told = []

    def info(text, extra):
        told.append(extra)
        if one.left == 3:
            one._left["t"] = 1
        else:
            one._left.clear()

    monkeypatch.setattr(recovery.log, "info", info)
    one._report()
    assert told == [{"ready": ready, "of": 3, "checked_mb": 3, "trusted_mb": 7}
                    for ready in (0, 1)]


def test_every_directory_has_a_path():
    with pytest.raises(ValueError):
        recovery.report([None, None], ["/a"])
