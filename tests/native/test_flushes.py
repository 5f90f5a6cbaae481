"""Waits for the disk that one descriptor tells: each slot once, whatever log it waits for next."""

import gc
import select

import pytest

from pylog._native import log
from pylog._native.flushes import FlushWaits
from tests.native.test_log import NOW, make, opened


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


def told(waits):
    assert select.select([waits], [], [], 60)[0], "nobody woke the slot"
    return waits.take()


def test_a_slot_is_told_once_its_offset_is_on_disk(directory):
    one, waits = opened(directory), FlushWaits(2)
    _, last = one.append(make(3), NOW)
    if not waits.wait(1, one, last):
        assert told(waits) == [1]
    assert one.flushed_offset == last + 1
    assert waits.wait(1, one, last)
    assert waits.take() == []


def test_a_slot_that_was_told_may_wait_for_another_log_at_once(directory):
    # A sanitizer sees here whether the flusher still has its hands on the waiter.
    logs = [opened(directory, partition=number) for number in range(3)]
    waits = FlushWaits(1)
    for number in range(300):
        one = logs[number % 3]
        _, last = one.append(make(1), NOW)
        if not waits.wait(0, one, last):
            assert told(waits) == [0]
        assert one.flushed_offset > last


def test_a_slot_is_told_of_a_log_that_goes(directory):
    one, waits = opened(directory), FlushWaits(1)
    assert not waits.wait(0, one, 10)
    one.delete()
    assert told(waits) == [0]


def test_waits_that_nobody_took_keep_no_log(directory):
    one = opened(directory)
    waits = FlushWaits(1)
    assert not waits.wait(0, one, 10)
    del waits
    one.append(make(1), NOW)
    one.flush()
    one.close(NOW)


def test_waits_that_go_with_a_cycle_of_objects_leave_their_logs(directory):
    one = opened(directory)
    for number in range(1, 30):
        waits = FlushWaits(1)
        assert not waits.wait(0, one, 10)
        # What holds them holds the log too, and itself.
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
