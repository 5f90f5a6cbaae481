"""A plugin of pytest that runs only the tests that a file names.

Owns: nothing.
Invariants: (1) the order of files and of tests in them stays pytest's.
"""

import os
from pathlib import Path

VARIABLE = "PYLOG_CHOSEN_TESTS"


def pytest_collection_modifyitems(config, items):
    chosen = set(Path(os.environ[VARIABLE]).read_text().split("\n"))
    others = [item for item in items if item.nodeid not in chosen]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item.nodeid in chosen]
