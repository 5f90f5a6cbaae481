"""What each lock guards and who must hold it, as Clang checks it: `python -m tests.locks`.

Owns: nothing.
Called by: test_locks.py, make.
Invariants: (1) every file of csrc/ is checked, with no exception.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Older ones do not know a member's lock by its name in C.
CLANG = os.environ.get("CLANG", "clang-22")
FLAGS = ["-std=c11", "-D_GNU_SOURCE", f"-I{ROOT / 'csrc'}", "-fsyntax-only",
         "-fexperimental-late-parse-attributes", "-Wthread-safety", "-Wthread-safety-beta",
         "-Werror"]
JOBS_MAX = 2


def check(paths: list[Path]) -> str:
    """What Clang finds wrong in these sources; empty when nothing is."""
    with ThreadPoolExecutor(JOBS_MAX) as pool:
        return "".join(pool.map(_compile, paths))


def sources(root: Path = ROOT) -> list[Path]:
    return sorted(root.glob("csrc/*/*.c"))


def _compile(path: Path) -> str:
    done = subprocess.run([CLANG, *FLAGS, path], capture_output=True, text=True)
    assert done.returncode == 0 or done.stderr, path
    return done.stderr


def main() -> int:
    found = check(sources())
    print(found, end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
