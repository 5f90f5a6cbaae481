"""The bare loops and load clients of the bench build without warnings and print their usage."""

import resource
import subprocess

import pytest

from bench import loads
from bench.programs import CFLAGS, LIBRARIES, SOURCES, load_client
from bench.secured import certificate

TICK_SECONDS = 0.02


@pytest.mark.parametrize("name", sorted(path.name for path in SOURCES.glob("*.c")))
def test_a_load_client_compiles_without_warnings(name, tmp_path):
    done = subprocess.run(
        ["gcc", *CFLAGS, "-Werror", str(SOURCES / name), "-o", str(tmp_path / "program"),
         *LIBRARIES],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(path.name for path in SOURCES.glob("preload/*.c")))
def test_a_library_that_is_preloaded_compiles_without_warnings(name, tmp_path):
    done = subprocess.run(
        ["gcc", *CFLAGS, "-Werror", "-fPIC", "-shared", str(SOURCES / "preload" / name), "-o",
         str(tmp_path / "library.so"), "-ldl"],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("kind", ["recv", "sendfile", "answer", "tls-recv", "tls-send"])
def test_floor_is_the_process_time_per_gb_or_million_units(kind, tmp_path,
                                                                         monkeypatch):
    """Compare the loop's CPU time with the kernel's: at most all of it, and most of it."""
    monkeypatch.setenv("PYLOG_CACHE", str(tmp_path))
    load_client("floor_tls" if kind.startswith("tls-") else "floor")
    total = 10**8 if kind == "answer" else 100_000_000
    before = _children_cpu_seconds()
    floor = loads.floor(kind, 1 << 17, 1 << 14, total, tmp_path, certificate(kind, tmp_path))
    used = _children_cpu_seconds() - before
    each = floor * (total / 10_000 / 1e6 if kind == "answer" else total / 1e9)
    # The median of the runs; at least half took as much.
    assert each * (loads.FLOOR_RUNS // 2 + 1) <= used + TICK_SECONDS
    assert each >= used / loads.FLOOR_RUNS / 20
