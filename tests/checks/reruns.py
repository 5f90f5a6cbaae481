"""Run a failed test again with new fixtures of its class and module.

A first run that fails may leave topics, groups or stopped brokers behind. With the same broker the
second run then fails for another reason, and the report shows only that one.

Owns: nothing.
Invariants: fixtures of a package and of the session survive, for they cost minutes (Apache Kafka).
"""

import pytest

# Fixtures of the current module in the order of their setup.
_SET_UP = pytest.StashKey[list]()


def pytest_sessionstart(session):
    session.stash[_SET_UP] = []


def pytest_fixture_setup(fixturedef, request):
    if fixturedef.scope in {"class", "module"}:
        request.session.stash[_SET_UP].append(fixturedef)


def pytest_fixture_post_finalizer(fixturedef, request):
    if fixturedef in (alive := request.session.stash[_SET_UP]):
        alive.remove(fixturedef)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if getattr(item, "execution_count", 1) > 1:
        for fixturedef in reversed(list(item.session.stash[_SET_UP])):
            fixturedef.finish(item._request)
