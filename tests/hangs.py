"""A test that hangs where no signal reaches it ends its process, and says where it stood.

pytest-timeout raises in the main thread, once: a call that holds the interpreter does not see it,
and what hangs in a fixture afterwards has no limit at all. One such test would hold a whole run
until somebody ends it, without a word of which it was. So faulthandler's own thread looks on, a
while longer; not by pytest's faulthandler_timeout, which has one limit for all and is called off
when a test fails, whose fixtures may hang then. pytest-xdist names the test in which a process
ended, and ends the run: what its --dist loadfile makes of a process that replaces another waits for
work that never comes.
"""

import faulthandler
import os

import pytest

BEYOND_S = 180.0
_STDERR = pytest.StashKey[int]()


def pytest_configure(config):
    # The real one: while tests run, pytest has another file in its place.
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config):
    os.close(config.stash[_STDERR])


def _limit_s(item) -> float:
    """Seconds for one phase of a test, 0 for no limit."""
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


# Each phase anew, for pytest calls the watch off when a test fails.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    _watch(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    _watch(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    _watch(item)
