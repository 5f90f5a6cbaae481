"""Clang's checks of C: lock annotations, and compilation of the tests' C code: `python -m
tests.checks.locks`.

Owns: nothing.
Invariants: every file of csrc/ is checked, with no exception; so is all C below tests/, which only
  `make fuzz` and sanitized tests build otherwise: a moved header is found here.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Older versions cannot name a struct member's lock in C.
CLANG = os.environ.get("CLANG", "clang-22")
SYNTAX = ["-std=c11", "-D_GNU_SOURCE", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests/csrc'}",
          "-fsyntax-only", "-fexperimental-late-parse-attributes", "-Wno-macro-redefined",
          # Scenes override defaults of their macros.
          "-Wno-initializer-overrides", "-Werror=implicit-function-declaration"]
FLAGS = [*SYNTAX, "-Wthread-safety", "-Wthread-safety-beta", "-Werror"]
JOBS_MAX = 2


def check(paths: list[Path], flags: list[str] = FLAGS) -> str:
    """Return Clang's messages for these sources; empty if there are none. flags: FLAGS, or SYNTAX
    to check only that they compile.
    """
    with ThreadPoolExecutor(JOBS_MAX) as pool:
        return "".join(pool.map(lambda path: _compile(path, flags), paths))


def sources(root: Path = ROOT) -> list[Path]:
    return sorted(root.glob("csrc/*/*.c"))


def sources_of_tests(root: Path = ROOT) -> list[Path]:
    """Return all C files below tests/."""
    return sorted(root.glob("tests/**/*.c"))


def _compile(path: Path, flags: list[str]) -> str:
    done = subprocess.run([CLANG, *flags, path], capture_output=True, text=True)
    assert done.returncode == 0 or done.stderr, path
    return done.stderr


def main() -> int:
    found = check(sources()) + check(sources_of_tests(), SYNTAX)
    print(found, end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
