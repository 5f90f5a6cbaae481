"""Deadlines by key: due, moved and cancelled ones, and the time of the next check."""

import pytest

from pylog.coordinator.runtime.timers import Timers

A, B = ("a",), ("b",)


@pytest.fixture
def timers():
    return Timers()


def due(timers, ms) -> list:
    found = []
    while (key := timers.take_due(ms)) is not None:
        found.append(key)
    return found


def test_a_key_is_due_at_its_deadline_and_once(timers):
    timers.set(A, 10)
    assert A in timers and len(timers) == 1 and timers.next_ms() == 10
    assert due(timers, 9) == []
    assert due(timers, 10) == [A]
    assert due(timers, 10) == [] and A not in timers and timers.next_ms() is None


def test_keys_come_in_the_order_of_their_deadlines(timers):
    for key, ms in ((B, 7), (A, 5), (("c",), 6), (("d",), 20)):
        timers.set(key, ms)
    assert due(timers, 10) == [A, ("c",), B]
    assert timers.next_ms() == 20


def test_a_deadline_that_was_put_off_is_due_at_the_later_time_only(timers):
    timers.set(A, 5)
    timers.set(A, 10)
    assert timers.next_ms() == 5, "a look too early costs little"
    assert due(timers, 5) == [] and timers.next_ms() == 10
    assert due(timers, 9) == []
    assert due(timers, 10) == [A]


def test_a_deadline_that_was_brought_forward_is_due_once(timers):
    timers.set(A, 10)
    timers.set(A, 5)
    assert timers.next_ms() == 5 and due(timers, 5) == [A]
    assert due(timers, 20) == []


def test_extending_a_deadline_only_moves_existing_earlier_ones(timers):
    timers.set(A, 5)
    timers.prolong(A, 10)
    timers.prolong(A, 7)
    timers.prolong(B, 3)
    assert B not in timers and due(timers, 9) == []
    assert due(timers, 10) == [A]


def test_cancelled_timer_is_not_due_and_can_be_set_again(timers):
    timers.set(A, 5)
    timers.set(B, 6)
    timers.cancel(A)
    timers.cancel(("never",))
    assert A not in timers and len(timers) == 1
    assert due(timers, 10) == [B]
    timers.set(A, 12)
    assert due(timers, 12) == [A]


def test_cancelled_timer_set_earlier_has_one_deadline(timers):
    timers.set(A, 5)
    timers.cancel(A)
    timers.set(A, 5)
    timers.set(A, 3)
    assert due(timers, 5) == [A] and timers.next_ms() is None


def test_a_heartbeat_that_moves_a_deadline_adds_nothing_to_the_queue(timers):
    for ms in range(1000):
        timers.set(A, 100 + ms)
    assert len(timers._heap) == 1
    assert due(timers, 1098) == [] and due(timers, 1099) == [A]
