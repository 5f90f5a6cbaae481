"""Brokers of pylog.testing, and runs of pytest with its plugin."""

import importlib.metadata
import os
from pathlib import Path

import pytest

from pylog.testing import Broker

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def make_broker():
    """Create brokers that are closed with the test."""
    made = []

    def make(**options):
        made.append(Broker(**options))
        return made[-1].start()

    yield make
    for one in made:
        one.close()


@pytest.fixture
def broker(make_broker):
    return make_broker()


@pytest.fixture
def run_pytest(pytester, monkeypatch):
    """Run a test file in a separate pytest, with the plugin: run_pytest(source, *arguments)."""
    monkeypatch.setenv("PYTHONPATH", os.fspath(REPOSITORY), prepend=os.pathsep)
    installed = importlib.metadata.entry_points(group="pytest11", name="pylog")
    plugin = [] if installed else ["-p", "pylog.testing.plugin"]

    def run(source, *arguments):
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess(
            *plugin, "-p", "no:randomly", "-p", "no:cacheprovider", "-q", *arguments)

    return run
