"""Ends the process of a test that hangs where no signal reaches it, and prints its stacks.

pytest-timeout raises in the main thread, once: a call that holds the GIL does not see it, and a
fixture that hangs afterwards has no timeout at all. One such test would block a whole run without
naming the test. So faulthandler's thread watches with a slightly longer timeout. pytest's
faulthandler_timeout does not suffice: it has one limit for all tests and is cancelled when a test
fails, whose fixtures may hang then. pytest-xdist names the test in which a process ended, and ends
the run: with --dist loadfile a replacement process would wait for work that never comes.
"""

import faulthandler
import os

import pytest

BEYOND_S = 180.0
_STDERR = pytest.StashKey[int]()


def pytest_configure(config):
    # The original stderr: while tests run, pytest redirects it to a file.
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config):
    os.close(config.stash[_STDERR])


def _limit_s(item) -> float:
    """Return seconds for one phase of a test, 0 for no limit."""
    marker = item.get_closest_marker("timeout")
    given = marker.args[0] if marker and marker.args else float(item.config.getini("timeout") or 0)
    return given and given + BEYOND_S


def _watch(item) -> None:
    if limit_s := _limit_s(item):
        faulthandler.dump_traceback_later(limit_s, file=item.config.stash[_STDERR], exit=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


# Restart the timer in each phase, because pytest cancels it when a test fails.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    _watch(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    _watch(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    _watch(item)
