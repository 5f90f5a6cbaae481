"""A plugin of pytest that notes which probes each test reached.

Owns: the cells that PYLOG_REACH names, which its children map too.
Invariants: (1) what a fixture of a module reaches counts for the test that made it.
"""

import json
import mmap
import os
import time
from pathlib import Path

import pytest

RESULT_VARIABLE = "PYLOG_REACH_RESULT"


def ranges(cells: bytes) -> list[list[int]]:
    """The numbers of cells that are set, as [first, last]."""
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
