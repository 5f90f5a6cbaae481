"""Pinned brokers and clients, and steady ratios."""

import os
import subprocess
import threading

import pytest

from bench import placement


def test_placements_use_one_shared_or_two_separate_processors():
    found = placement.placements([0, 1, 3])
    assert (found["same"].broker, found["same"].clients) == ({3}, {3})
    assert (found["apart"].broker, found["apart"].clients) == ({3}, {0})
    assert found["free"].broker == found["free"].clients == {0, 1, 3}


def test_separate_placement_requires_two_processors():
    assert "apart" not in placement.placements([2])


def test_processes_started_while_pinned_run_on_the_clients_processors():
    before = os.sched_getaffinity(0)
    one = placement.placements()["same"]
    with placement.pinned(one):
        assert os.sched_getaffinity(0) == one.clients
        shown = subprocess.run(["taskset", "-pc", str(os.getpid())], capture_output=True,
                               text=True, check=True).stdout
        assert shown.rpartition(":")[2].split() == [str(cpu) for cpu in one.clients]
    assert os.sched_getaffinity(0) == before


def test_all_threads_of_a_process_are_pinned():
    before = os.sched_getaffinity(0)
    done, begun = threading.Event(), threading.Event()
    seen = []

    def run() -> None:
        begun.set()
        done.wait()
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    try:
        placement.pin(os.getpid(), frozenset([max(before)]))
        assert os.sched_getaffinity(0) == {max(before)}
    finally:
        done.set()
        thread.join()
        placement.pin(os.getpid(), frozenset(before))
    assert seen == [{max(before)}]


@pytest.mark.parametrize(("values", "found"), [
    ([1.0, 1.0], None), ([1.0, 1.0, 1.0], 0.0), ([1.0, 2.0, 3.0], 0.5),
    ([1.0, 1.0, 1.0, 1.0, 9.0], 0.0),
])
def test_the_spread_is_the_middle_half_of_three_rounds_or_more(values, found):
    assert placement.spread(values) == found
