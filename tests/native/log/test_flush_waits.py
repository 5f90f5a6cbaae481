"""Flush waits notified through one descriptor: each slot once, for any log."""

import gc
import select
import time

import pytest

from pylog._native.log import log
from pylog._native.log.flush_waits import FlushWaits
from tests.native.log.test_log import NOW, make, opened


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


def notified(waits):
    assert select.select([waits], [], [], 60)[0], "nobody woke the slot"
    return waits.take()


def test_slot_is_notified_when_its_offset_is_on_disk(directory):
    one, waits = opened(directory), FlushWaits(2)
    _, last = one.append(make(3), NOW)
    if not waits.wait(1, one, last):
        assert notified(waits) == [1]
    assert one.flushed_offset == last + 1
    assert waits.wait(1, one, last)
    assert waits.take() == []


@pytest.mark.parametrize("committed", [False, True])
def test_append_that_makes_an_offset_visible_notifies_its_slot(directory, committed):
    one, waits = opened(directory), FlushWaits(1)
    assert not waits.wait_visible(0, one, 2, committed)
    one.append(make(2), NOW)
    assert waits.take() == []
    # No other thread is involved: the slot is notified before the append returns.
    one.append(make(1), NOW)
    assert waits.take() == [0]
    assert waits.wait_visible(0, one, 2, committed)


def test_notified_slot_can_wait_for_another_log_immediately(directory):
    # A sanitizer detects here if the flusher still uses the waiter.
    logs = [opened(directory, partition=number) for number in range(3)]
    waits = FlushWaits(1)
    for number in range(300):
        one = logs[number % 3]
        _, last = one.append(make(1), NOW)
        if not waits.wait(0, one, last):
            assert notified(waits) == [0]
        assert one.flushed_offset > last


def test_slot_is_notified_of_a_deleted_log(directory):
    one, waits = opened(directory), FlushWaits(1)
    assert not waits.wait(0, one, 10)
    one.delete()
    assert notified(waits) == [0]


def test_dropped_waits_keep_no_log(directory):
    one = opened(directory)
    waits = FlushWaits(1)
    assert not waits.wait(0, one, 10)
    del waits
    one.append(make(1), NOW)
    one.flush()
    one.close(NOW)


def test_log_is_flushed_after_flush_messages(directory):
    one, other = opened(directory, config={"flush.messages": 6}), opened(directory, partition=1)
    waits = FlushWaits(1)

    def flush_other():
        """Wait until all earlier flush requests are done."""
        for _ in range(20):
            _, last = other.append(make(1), NOW)
            if not waits.wait(0, other, last):
                assert notified(waits) == [0]

    for already in (0, 6):
        one.append(make(3), NOW)
        one.append(make(2), NOW)
        flush_other()
        assert one.flushed_offset == already
        one.append(make(1), NOW)
        end_s = time.monotonic() + 60
        while one.flushed_offset < already + 6 and time.monotonic() < end_s:
            time.sleep(0.005)
        assert one.flushed_offset == already + 6


def test_slot_is_notified_of_a_closed_log_and_releases_it(directory):
    one, waits = opened(directory), FlushWaits(2)
    for slot in range(2):
        assert not waits.wait(slot, one, 10)
    one.release()
    assert sorted(notified(waits)) == [0, 1]
    with pytest.raises(log.LogDeleted):
        waits.wait(0, one, 10)


def test_waits_for_a_closed_log_can_be_dropped(directory):
    one, waits = opened(directory), FlushWaits(1)
    assert not waits.wait(0, one, 10)
    one.close(NOW)
    del waits
    opened(directory).append(make(1), NOW)


def test_waits_in_a_garbage_cycle_release_their_logs(directory):
    one = opened(directory)
    for number in range(1, 30):
        waits = FlushWaits(1)
        assert not waits.wait(0, one, 10)
        # The cycle also contains the waits' log and itself.
        cycle = {"waits": waits, "log": opened(directory, partition=number)}
        cycle["cycle"] = cycle
        other = FlushWaits(1)
        assert not other.wait(0, cycle["log"], 10)
        cycle["other"] = other
        del waits, other, cycle
        gc.collect()
    one.append(make(1), NOW)
    one.flush()
    one.close(NOW)
