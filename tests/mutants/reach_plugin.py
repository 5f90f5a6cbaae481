"""A pytest plugin that records which probes each test reached.

Owns: the memory named by PYLOG_REACH, which child processes map too.
Invariants: lines that a module's fixture reaches count for the test that created it.
"""

import json
import mmap
import os
import time
from pathlib import Path

import pytest

RESULT_VARIABLE = "PYLOG_REACH_RESULT"


def ranges(cells: bytes) -> list[list[int]]:
    """Return the numbers of set cells as [first, last] ranges."""
    found = []
    at = cells.find(1)
    while at >= 0:
        end = cells.find(0, at)
        end = len(cells) if end < 0 else end
        found.append([at, end - 1])
        at = cells.find(1, end)
    return found


class _Reached:
    def __init__(self) -> None:
        with open(os.environ["PYLOG_REACH"], "r+b") as file:
            self.cells = mmap.mmap(file.fileno(), 0)
        self.tests: dict[str, dict] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        self.cells[:] = bytes(len(self.cells))
        began_s = time.monotonic()
        yield
        self.tests[item.nodeid] = {"seconds": round(time.monotonic() - began_s, 4),
                                   "reached": ranges(self.cells[:])}

    def pytest_sessionfinish(self):
        Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps(self.tests))


def pytest_configure(config):
    config.pluginmanager.register(_Reached())
