"""The native programs of the bench: our C load clients, and librdkafka's rdkafka_performance.

Owns: the folder `bench/` of the cache ($PYLOG_CACHE, by default .cache/ of the checkout).
Invariants: no file of librdkafka enters the checkout; a program is rebuilt if its source is newer.
Source: librdkafka comes inside the crate rdkafka-sys, fetched by cargo.
"""

import os
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).with_name("csrc")
CFLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-g1", "-msse4.2", "-Wall", "-Wextra",
          "-Wconversion", "-Wshadow", "-pthread"]
LIBRARIES = ["-lm", "-Wl,--as-needed", "-lssl", "-lcrypto"]
RDKAFKA_SYS = "=4.10.0"
CRATE = f"""\
[package]
name = "fetch-librdkafka"
version = "0.0.0"
edition = "2021"
[dependencies]
rdkafka-sys = {{ version = "{RDKAFKA_SYS}", default-features = false }}
"""


class ProgramMissing(Exception):
    """A compiler or a source is not available; the message is one line for the user."""


def cache_dir() -> Path:
    root = os.environ.get("PYLOG_CACHE") or Path(__file__).resolve().parent.parent / ".cache"
    return Path(root) / "bench"


def _run(command: list[str], folder: Path, log: Path, **extra) -> None:
    with open(log, "ab") as sink:
        done = subprocess.run(command, cwd=folder, stdout=sink, stderr=sink, **extra)
    if done.returncode:
        raise ProgramMissing(f"`{' '.join(command[:4])}` failed, see {log}")


def load_client(name: str) -> str:
    """Return the path of the program built from bench/csrc/`name`.c."""
    newest = max(path.stat().st_mtime for path in SOURCES.iterdir())
    return _built(SOURCES / f"{name}.c", cache_dir() / name, newest, [], LIBRARIES)


def preload_library(name: str) -> str:
    """Return the path of the library built from bench/csrc/preload/`name`.c, for LD_PRELOAD."""
    source = SOURCES / "preload" / f"{name}.c"
    return _built(source, cache_dir() / f"{name}.so", source.stat().st_mtime,
                  ["-fPIC", "-shared"], ["-ldl"])


def _built(source: Path, made: Path, newest: float, flags: list[str], libraries: list[str]) -> str:
    """Return the path, recompiled unless it is newer than `newest`."""
    if made.exists() and made.stat().st_mtime > newest:
        return str(made)
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise ProgramMissing("the programs of the bench need gcc")
    made.parent.mkdir(parents=True, exist_ok=True)
    fresh = made.with_suffix(f".{os.getpid()}")
    _run([compiler, *CFLAGS, *flags, str(source), "-o", str(fresh), *libraries], SOURCES,
         made.parent / f"{source.stem}.build")
    fresh.rename(made)
    return str(made)


def rdkafka_performance() -> str:
    """Return the path of librdkafka's load program, built once from the crate's sources."""
    root = cache_dir() / "librdkafka-ssl"
    program = root / "build" / "examples" / "rdkafka_performance"
    if program.exists():
        return str(program)
    if shutil.which("cargo") is None:
        raise ProgramMissing("rdkafka_performance needs cargo, which fetches librdkafka's sources")
    shutil.rmtree(root, ignore_errors=True)
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.rs").write_text("fn main() {}\n")
    (root / "Cargo.toml").write_text(CRATE)
    log = root / "build.log"
    _run(["cargo", "vendor", "-q", "vendor"], root, log)
    shutil.copytree(root / "vendor" / "rdkafka-sys" / "librdkafka", root / "build")
    plain = {**os.environ, "CC": "gcc"}  # mklove accepts no compiler with arguments.
    build = root / "build"
    _run(["./configure", "--disable-gssapi", "--enable-ssl", "--disable-curl"], build, log,
         env=plain)
    _run(["make", "-j2", "libs"], build, log, env=plain)
    _run(["make", "-C", "examples", "rdkafka_performance"], build, log, env=plain)
    return str(program)
