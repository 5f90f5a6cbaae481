"""Which tests reach which lines, recorded once by running each test file on probed sources.

Owns: build/reach below the root: a probed copy of the tree and the recorded data.
Invariants: snapshot: the data belongs to one snapshot of the sources, and lines of later sources
  are mapped by comparing the two; changed tests: a test file that changed since counts as reaching
  every line.
"""

import argparse
import bisect
import difflib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutants import parts, probes
from tests.mutants.reach_plugin import RESULT_VARIABLE
from tests.mutants.trees import Tree, environment

FILE_SECONDS_MAX = 1800
PROBES = "probes.json"


class Test(NamedTuple):
    """A test. node: pytest's id. seconds: includes the fixtures that it was the first to need."""

    node: str
    seconds: float

    @property
    def file(self) -> str:
        return self.node.partition("::")[0]


class Reach:
    """The recorded data. at: its folder."""

    def __init__(self, at: Path):
        self.at = at
        noted = json.loads((at / PROBES).read_text())
        self._sources: dict[str, str] = noted["sources"]
        self._probes: dict[str, list[list[int]]] = noted["probes"]
        self._files: dict[str, dict] = {}
        for path in sorted(at.glob("tests/**/*.json")):
            found = json.loads(path.read_text())
            self._files[found["file"]] = found

    def changed(self, root: Path, files: list[str]) -> list[str]:
        """Return the test files that are new or changed. Keeps changed tests."""
        return [name for name in files if name not in self._files
                or self._files[name]["digest"] != digest(root / name)]

    def tests(self, path: str, line: int, text: str) -> list[Test] | None:
        """Return the tests that reach a line of the current source, fastest first; None if unknown.
        """
        cells = self._cells(path, self._line_then(path, line, text))
        if not cells:
            return None
        found = [Test(node, one["seconds"]) for file in self._files.values()
                 for node, one in file["tests"].items()
                 if any(_holds(one["reached"], cell) for cell in cells)]
        return sorted(found, key=lambda test: test.seconds)

    def _cells(self, path: str, line: int) -> list[int]:
        """Return the probes that cover a line: those that begin last before it."""
        found = [(begin, cell) for cell, begin, end in self._probes.get(path, ())
                 if begin <= line <= end]
        last = max((begin for begin, _ in found), default=0)
        return [cell for begin, cell in found if begin == last]

    def _line_then(self, path: str, line: int, text: str) -> int:
        """Return the line in the snapshot. Keeps the snapshot."""
        old = self._sources.get(path)
        if old is None or old == text:
            return line
        blocks = difflib.SequenceMatcher(None, old.splitlines(), text.splitlines(),
                                         autojunk=False).get_matching_blocks()
        at = max(bisect.bisect_right([block.b for block in blocks], line - 1) - 1, 0)
        block = blocks[at]
        return block.a + min(line - 1 - block.b, max(block.size - 1, 0)) + 1


def _holds(reached: list[list[int]], cell: int) -> bool:
    at = bisect.bisect_right(reached, cell, key=lambda one: one[0]) - 1
    return at >= 0 and cell <= reached[at][1]


def digest(path: Path) -> str:
    return hashlib.blake2s(path.read_bytes()).hexdigest()


class Noting:
    """Creates the probed copy and runs tests on it."""

    def __init__(self, root: Path, at: Path):
        self.root = root
        self.at = at
        self.tree = Tree(root, at / "tree")

    def prepare(self) -> None:
        """Create a snapshot if none exists."""
        if (self.at / PROBES).exists():
            self.copy_tests()
            return
        shutil.rmtree(self.at, ignore_errors=True)
        self.tree.refresh()
        count, noted, sources = 0, {}, {}
        files = [path for part in parts.PARTS for path in parts.files(part, self.root)]
        for path in dict.fromkeys(files):
            sources[path] = (self.root / path).read_text()
            text, lines = probes.probed(path, sources[path], count)
            noted[path] = [[count + number, *one] for number, one in enumerate(lines)]
            count += len(lines)
            self.tree.put(path, text)
        assert count <= probes.CELLS, count
        self.tree.put(probes.C_HEADER, probes.C_TEXT)
        self.tree.put(probes.PYTHON_MODULE, probes.PYTHON_TEXT)
        complaint = self.tree.build()
        assert not complaint, complaint
        (self.at / PROBES).write_text(json.dumps({"sources": sources, "probes": noted}))

    def copy_tests(self) -> None:
        for path in self.root.glob("tests/**/*.*"):
            if path.is_file() and "__pycache__" not in path.parts:
                target = self.tree.at / path.relative_to(self.root)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)

    def note(self, name: str) -> str:
        """Run a test file and return the outcome."""
        out = self.at / (name + ".json")
        out.parent.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="reach-") as folder:
            cells, result = Path(folder, "cells"), Path(folder, "result")
            cells.write_bytes(bytes(probes.CELLS))
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
                 "no:randomly", "-p", "tests.mutants.reach_plugin", "--tb=no", "-m",
                 parts.NEAR_MARKS, name],
                cwd=self.tree.at, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                start_new_session=True,
                env={**environment(self.tree.at), probes.FILE_VARIABLE: str(cells),
                     RESULT_VARIABLE: str(result)})
            try:
                text = process.communicate(timeout=FILE_SECONDS_MAX)[0]
            except subprocess.TimeoutExpired:
                text = "took too long"
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            tests = json.loads(result.read_text()) if result.exists() else {}
        out.write_text(json.dumps({"file": name, "digest": digest(self.root / name),
                                   "tests": tests}))
        last = (text.strip().splitlines() or ["no word"])[-1]
        return f"{name}: {last} ({time.monotonic() - began_s:.0f} s)"


def main(arguments: list[str] | None = None) -> int:
    """Record the lines that the tests of all parts reach, near tests first."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.reach", description=main.__doc__)
    parser.add_argument("--at", type=Path, default=parts.ROOT / "build/reach")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("tests", nargs="*", help="files, when not all of them")
    given = parser.parse_args(arguments)
    noting = Noting(parts.ROOT, given.at)
    noting.prepare()
    names = given.tests or Reach(given.at).changed(parts.ROOT, parts.all_tests())
    with ThreadPoolExecutor(given.jobs) as pool:
        for line in pool.map(noting.note, names):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
