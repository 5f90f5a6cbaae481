"""A pytest plugin that runs only the tests listed in a file.

Owns: nothing.
Invariants: files, and tests in a file, run in pytest's order.
"""

import os
from pathlib import Path

VARIABLE = "PYLOG_CHOSEN_TESTS"


def pytest_collection_modifyitems(config, items):
    chosen = set(Path(os.environ[VARIABLE]).read_text().split("\n"))
    others = [item for item in items if item.nodeid not in chosen]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item.nodeid in chosen]
