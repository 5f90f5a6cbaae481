"""C programs of these folders, linked with parts of csrc/ and a sanitizer, as processes."""

import functools
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fixtures.child_environment import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
LOG = ("format/*.c", "os/*.c", "segment/*.c", "log/*.c", "log_manager/*.c", "compaction/*.c")
SERVE = (*LOG, "tables/*.c", "serve/*.c")
# Functions that log_played.h replaces besides the disk.
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
CACHE = ("log_range_is_cold", "log_range_read_cached", "log_read_nowait")
LIBRARIES = ["-lisal", "-llz4", "-lzstd", "-lsnappy", "-lz", "-lstdc++"]
# The options that `make asan` and `make tsan` set apply to the interpreter only.
SANITIZED = {**ENVIRONMENT, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "",
             "UBSAN_OPTIONS": "print_stacktrace=1"}
BUILT = tempfile.TemporaryDirectory(prefix="programs-")


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
def _object(source: Path, command: tuple[str, ...]) -> str:
    """Compile separately, because ccache caches objects but not programs."""
    made = tempfile.mkstemp(suffix=f"-{source.stem}.o", dir=BUILT.name)
    os.close(made[0])
    folders = ["-I", str(ROOT / "csrc"), "-I", str(ROOT / "tests/csrc")]
    subprocess.run([*command, *folders, "-c", str(source), "-o", made[1]],
                   check=True, env=ENVIRONMENT)
    return made[1]


def play(name: str, path: Path, scene: str, played: tuple[str, ...] = ()) -> None:
    """Run a scene of a program with log_played.h in its own folder.

    played: functions that it replaces.
    """
    own = [f"-Wl,--wrap={function}" for function in played]
    check_ok(built(name, "", LOG, PLAYED, *own), path, scene)
