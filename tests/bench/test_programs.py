"""The bare loops and load clients of the bench build without warnings and say what they mean."""

import subprocess

import pytest

from bench import loads
from bench.programs import CFLAGS, SOURCES


@pytest.mark.parametrize("name", sorted(path.name for path in SOURCES.glob("*.c")))
def test_a_load_client_compiles_without_warnings(name, tmp_path):
    done = subprocess.run(
        ["gcc", *CFLAGS, "-Werror", str(SOURCES / name), "-o", str(tmp_path / "program"), "-lm"],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["recv", "sendfile", "answer"])
def test_a_floor_reports_cpu_seconds(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("PYLOG_CACHE", str(tmp_path))
    assert 0 < loads.floor(kind, 1 << 17, 1 << 14, 20_000_000, tmp_path) < 1000
