"""Checks the density of assertions in the C code.

Owns: the minimum of each folder.
Invariants: a minimum is only raised.
"""

import re
from pathlib import PurePath

# Folder -> minimum number of assert() and assert_slow() per thousand lines of its .c files.
PER_THOUSAND = {"csrc/segment": 15, "csrc/log": 15, "csrc/log_manager": 15, "csrc/compaction": 15,
                "csrc/tables": 15, "csrc/transport": 15, "csrc/serve": 15, "csrc/net": 15,
                "csrc/replica": 15}
_ASSERT = re.compile(r"\bassert(?:_slow)?\(")


def too_few(texts: dict[PurePath, str]):
    """Yield (folder, line, message) of each folder below its minimum. texts: of all sources."""
    for folder, least in PER_THOUSAND.items():
        files = [text for path, text in texts.items()
                 if str(path.parent) == folder and path.suffix == ".c"]
        lines = sum(text.count("\n") for text in files)
        found = sum(len(_ASSERT.findall(text)) for text in files)
        if found * 1000 < least * lines:
            wanted = -(-least * lines // 1000)
            yield folder, 1, (f"{found} asserts in {lines} lines, at least {wanted}: assert what "
                              f"a function relies on ({least} a thousand lines)")
