"""C programs of these folders, linked with parts of csrc/ and a sanitizer, as processes."""

import contextlib
import fcntl
import functools
import hashlib
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fixtures.child_environment import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
LOG = ("format/*.c", "os/*.c", "segment/*.c", "log/*.c", "log_manager/*.c", "compaction/*.c")
SERVE = (*LOG, "tables/*.c", "serve/*.c")
# Functions that log_simulation.h replaces besides the disk.
PLAYED = "-Wl," + ",".join("--wrap=" + name for name in (
    "malloc", "calloc", "realloc", "strdup", "mincore", "fstatvfs"))
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-pthread", "-fno-omit-frame-pointer"]
# Functions that watched.h replaces.
WATCHED = "-Wl," + ",".join(f"--wrap={name}" for name in (
    "malloc", "calloc", "realloc", "strdup", "strndup", "free",
    *(f"pthread_{kind}_{what}" for kind, whats in (
        ("mutex", "init destroy lock unlock"), ("rwlock", "init destroy rdlock wrlock unlock"))
      for what in whats.split())))
# Functions that serve_messages.h replaces.
CACHE = ("log_range_is_cold", "log_range_read_cached", "log_read")
LIBRARIES = ["-lisal", "-llz4", "-lzstd", "-lsnappy", "-lz", "-lstdc++"]
# The options that `make asan` and `make tsan` set apply to the interpreter only.
SANITIZED = {**ENVIRONMENT, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "",
             "UBSAN_OPTIONS": "print_stacktrace=1"}
BUILT = tempfile.TemporaryDirectory(prefix="programs-")
OBJECTS = ROOT / "build/programs"
KEPT_S = 3 * 86_400.0


def source_of(program: str) -> Path:
    """Return the C file of a program in one of the folders beside this file."""
    [found] = (ROOT / "tests/csrc").glob(f"*/{program}.c")
    return found


@functools.cache
def built(name: str, sanitizer: str, parts: tuple[str, ...], *more: str) -> Path:
    """Build the program `name`.c.

    sanitizer: value of -fsanitize, "" for none. parts: patterns of sources below csrc/. more:
    flags.
    """
    program = Path(BUILT.name) / f"{name}-{sanitizer}"
    sources = [source_of(name),
               *(path for part in parts for path in sorted(ROOT.glob(f"csrc/{part}")))]
    assert all(any(ROOT.glob(f"csrc/{part}")) for part in parts), parts
    extra = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
    linked = [flag for flag in more if flag.startswith("-Wl,")]
    command = (*os.environ.get("CC", "gcc").split(), *FLAGS, *extra,
               *(flag for flag in more if flag not in linked))
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda source: _object(source, command), sources))
    subprocess.run([*command, *linked, "-o", str(program), *objects, *LIBRARIES],
                   check=True, env=ENVIRONMENT)
    return program


def check_ok(program: Path, *arguments: object, **variables: str) -> None:
    """Run a program with these environment variables; its output must end with "ok"."""
    ran = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True,
                         timeout=110, env={**ENVIRONMENT, **variables})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")


def play_watched(name: str, parts: tuple[str, ...], *arguments: object,
                 played: tuple[str, ...] = ()) -> None:
    """Run a program that includes watched.h, which overwrites freed memory.

    played: functions of csrc/ that it replaces.
    """
    own = [f"-Wl,--wrap={function}" for function in played]
    check_ok(built(name, "", parts, WATCHED, *own), *arguments, MALLOC_PERTURB_="165")


@functools.cache
def _headers() -> bytes:
    """Return a hash of all headers, which decides about objects together with their source."""
    paths = sorted([*ROOT.glob("csrc/**/*.h"), *ROOT.glob("tests/csrc/**/*.h")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).digest()


def _object(source: Path, command: tuple[str, ...]) -> str:
    """Compile a source unless an equal object exists. Workers of one run share objects."""
    parts = (repr(command), str(source), str(OBJECTS))
    key = hashlib.sha256("\n".join(parts).encode() + _headers() + source.read_bytes()).hexdigest()
    made = OBJECTS / f"{source.stem}-{key[:32]}.o"
    OBJECTS.mkdir(parents=True, exist_ok=True)
    with open(made.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            os.utime(made)
        if not made.exists():
            _remove_old()
            unfinished = made.with_suffix(".tmp")
            folders = ["-I", str(ROOT / "csrc"), "-I", str(ROOT / "tests/csrc")]
            subprocess.run([*command, *folders, "-c", str(source), "-o", str(unfinished)],
                           check=True, env=ENVIRONMENT)
            unfinished.rename(made)
    return str(made)


@functools.cache
def _remove_old() -> None:
    """Remove objects that no run has used for some days."""
    for path in OBJECTS.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - KEPT_S:
                path.unlink()


def play(name: str, path: Path, scene: str, played: tuple[str, ...] = ()) -> None:
    """Run a scene of a program with log_simulation.h in its own folder.

    played: functions that it replaces.
    """
    own = [f"-Wl,--wrap={function}" for function in played]
    check_ok(built(name, "", LOG, PLAYED, *own), path, scene)
