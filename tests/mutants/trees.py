"""A copy of the source tree with its own build products, in which mutants are built and tested.

Owns: build/mutants below the root.
Invariants: clean copy: before each mutant the copy equals the tree; time stamps: a changed file has
  a new time stamp, so that a mutant's objects are rebuilt; own processes: only processes started
  here are killed; clean build: build/clean contains the output of setup.py for the tree: the
  objects of csrc/, their archive and the extensions.
"""

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutants.chosen_plugin import VARIABLE
from tests.mutants.sites import Site

BUILD_SECONDS_MAX = 900
CHOSEN = "build/chosen_tests"
CLEAN = "build/clean"
ARCHIVE = "build/temp.*/libpylogcore.a"
LINKS_AT_A_TIME = 2
_FILE = re.compile(r" FILE +LOCAL +DEFAULT +ABS (\S+)")
COMPILER = os.environ.get("CC") or ("ccache gcc" if shutil.which("ccache") else "gcc")
_NODE = re.compile(r"\b(tests/[\w/]+\.py::[^\s:]+(?:::[^\s:]+)*(?:\[[^\n]*?\])?)(?=\s|$)")


def environment(at: Path) -> dict[str, str]:
    """Return the environment for the copy, without the options of the enclosing pytest run.

    For example, its order of failed tests first does not apply here.
    """
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return {**own, "PYTHONPATH": str(at), "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONFAULTHANDLER": "1", "CC": COMPILER}


class Ran(NamedTuple):
    """A pytest run: "passed", "failed", "crashed" or "late", and the last test."""

    how: str
    test: str
    seconds: float
    failed: tuple[str, ...] = ()


class Tree:
    """The copy. root: the original tree."""

    def __init__(self, root: Path, at: Path | None = None):
        self.root = root
        self.at = at or root / "build/mutants"
        self._changed: list[str] = []  # products of a mutant, in build order
        self._sources: dict[str, set[str]] = {}  # extension -> names of its source files

    def refresh(self) -> None:
        """Copy the tree. Keeps the clean copy and time stamps."""
        fresh = not self.at.exists()
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=self.root,
                                check=True, capture_output=True, text=True).stdout
        names = {name for name in listed.split("\0") if name and (self.root / name).is_file()}
        if fresh:
            names |= self._products()
        for name in sorted(names):
            source, target = self.root / name, self.at / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy2(source, target)
            elif source.read_bytes() != target.read_bytes():
                target.write_bytes(source.read_bytes())
        for path in [*self.at.glob("csrc/**/*.[ch]"), *self.at.glob("pylog/**/*.py"),
                     *self.at.glob("tests/**/*.py")]:
            if not (self.root / path.relative_to(self.at)).exists():
                path.unlink()

    def _products(self) -> set[str]:
        """Return the products of an existing build."""
        paths = [*self.root.glob("build/temp.*/**/*"), *self.root.glob("pylog/_native/*/*.so"),
                 *self.root.glob("pylog/_native/*/*.c")]
        return {str(path.relative_to(self.root)) for path in paths if path.is_file()}

    def build(self) -> str:
        """Build, and return the compiler's errors or ""."""
        complaint = self._ran([sys.executable, "setup.py", "-q", "build_ext", "--inplace"])
        if not complaint:
            self._keep()
        return complaint

    def _ran(self, command: list[str]) -> str:
        done = subprocess.run(command, cwd=self.at, env=environment(self.at), text=True,
                              capture_output=True, timeout=BUILD_SECONDS_MAX)
        return "" if done.returncode == 0 else done.stderr[-2000:] or "not built"

    def _keep(self) -> None:
        """Save the products of the build. Keeps the clean build."""
        shutil.rmtree(self.at / CLEAN, ignore_errors=True)
        # An older build can have left records of extensions that no longer exist.
        links = [name for how in self.at.glob("build/temp.*/**/*.linked")
                 if (self.at / (name := _product(_words(how)))).exists()]
        products = [*self.at.glob("build/temp.*/csrc/**/*.o"), *self.at.glob(ARCHIVE),
                    *(self.at / name for name in links)]
        for path in products:
            kept = self.at / CLEAN / path.relative_to(self.at)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, kept)
        for name in links:
            symbols = subprocess.run(["readelf", "-sW", name], cwd=self.at, check=True,
                                     capture_output=True, text=True).stdout
            self._sources[name] = set(_FILE.findall(symbols))

    def put(self, path: str, text: str) -> None:
        """Write a source. Keeps time stamps."""
        (self.at / path).write_text(text)

    def restore(self, path: str) -> None:
        """Restore a source and its products."""
        self.put(path, (self.root / path).read_text())
        for name in self._changed:
            _replace(self.at / CLEAN / name, self.at / name)
        self._changed = []

    def mutate(self, site: Site) -> str:
        """Insert a mutant and build it. Return "", "stillborn: ..." or "same code"."""
        text = (self.root / site.path).read_text()
        mutant = site.applied(text)
        if site.path.endswith(".py"):
            try:
                tree = ast.parse(mutant)
            except SyntaxError as broken:
                return f"stillborn: {broken.msg}"
            self.put(site.path, mutant)
            return "same code" if ast.dump(tree) == ast.dump(ast.parse(text)) else ""
        self.put(site.path, mutant)
        [made] = self.at.glob("build/temp.*/" + site.path.removesuffix(".c") + ".o")
        name = str(made.relative_to(self.at))
        self._changed = [name]
        complaint = self._ran(_words(made.with_suffix(".how")))
        if complaint:
            return "stillborn: " + (complaint.strip().splitlines() or ["?"])[-1]
        if _stripped(made) == _stripped(self.at / CLEAN / name):
            return "same code"
        self._link(made.with_suffix(".c").name)
        return ""

    def _link(self, source: str) -> None:
        """Link the archive and the extensions that contain code of this file."""
        [archive] = self.at.glob(ARCHIVE)
        archive.unlink()
        names = archive.with_suffix(".list").read_text().split("\n")
        complaint = self._ran(["ar", "qcs", str(archive), *names])
        assert not complaint, complaint
        commands = [command for how in self.at.glob("build/temp.*/**/*.linked")
                    if source in self._sources[_product(command := _words(how))]]
        with ThreadPoolExecutor(LINKS_AT_A_TIME) as pool:
            complaint = "".join(pool.map(self._ran, commands))
        assert not complaint, complaint
        for command in commands:
            _replace(self.at / command[-1], self.at / _product(command))
        self._changed += [str(archive.relative_to(self.at)), *map(_product, commands)]

    def test(self, files: list[str], marks: str, seconds_max: float, *, timeout_s: int = 60,
             without: tuple[str, ...] = (), chosen: list[str] | None = None) -> Ran:
        """Run tests of the copy in this order, until the first failure.

        chosen: only these tests of the files.
        """
        command = [sys.executable, "-m", "pytest", "-v", "-x", "-rfE", "-p", "no:cacheprovider",
                   "-p", "no:randomly", "--tb=no", "-m", marks, f"--timeout={timeout_s}",
                   *[f"--deselect={one}" for one in without], *files]
        variables = environment(self.at)
        if chosen is not None:
            (self.at / CHOSEN).write_text("\n".join(chosen))
            variables[VARIABLE] = CHOSEN
            command += ["-p", "tests.mutants.chosen_plugin"]
        began_s = time.monotonic()
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(command, cwd=self.at, stdout=out, stderr=out,
                                       env=variables, start_new_session=True)
            late = False
            try:
                process.wait(seconds_max)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                # Keeps to own processes: kill its session, including brokers that its tests
                # started.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            out.seek(0)
            text = out.read()
        return _read(text, process.returncode, late, time.monotonic() - began_s)


def _words(how: Path) -> list[str]:
    """Return the command that setup.py recorded beside its output."""
    return shlex.split(how.read_text())


def _product(command: list[str]) -> str:
    """Return the path to which setup.py copies a linked file."""
    return command[-1].split("/", 2)[2]


def _replace(source: Path, target: Path) -> None:
    """Write a new file, because a remaining process may still map the old one."""
    fresh = target.with_suffix(".new")
    shutil.copy(source, fresh)
    fresh.replace(target)


def _stripped(made: Path) -> bytes:
    """Return an object without line numbers."""
    with tempfile.NamedTemporaryFile(suffix=".o") as out:
        subprocess.run(["objcopy", "--strip-debug", str(made), out.name], check=True)
        return Path(out.name).read_bytes()


def _read(text: str, code: int, late: bool, seconds: float) -> Ran:
    nodes = _NODE.findall(text)
    last = nodes[-1] if nodes else ""
    failed = tuple(dict.fromkeys(
        found[1] for found in re.finditer(r"^(?:FAILED|ERROR) (tests/\S+(?:\[[^\n]*?\])?)(?: - |$)",
                                          text, re.M)))
    if late:
        return Ran("late", last, seconds)
    if code in (0, 5):
        return Ran("passed", "", seconds)
    if code in (1, 2) and failed:
        return Ran("failed", failed[0], seconds, failed)
    return Ran("crashed", last, seconds)
