"""The order in which workers get test files."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from tests.checks import schedule


def test_files_that_start_clusters_come_before_unit_tests():
    items = [SimpleNamespace(nodeid=name) for name in (
        "tests/api/test_hidden_objects.py::test_a", "tests/cluster/test_growing.py::test_b",
        "tests/api/test_effects.py::test_c", "tests/spark/test_jobs.py::test_d")]
    schedule.pytest_collection_modifyitems(SimpleNamespace(workerinput={}), items)
    assert [item.nodeid[-1] for item in items] == ["d", "b", "a", "c"]


def test_spark_is_one_unit_and_other_files_are_one_each():
    assert schedule.unit("tests/spark/test_jobs.py::test_d") == schedule.unit(
        "tests/spark/test_gaps.py::test_e")
    assert schedule.unit("tests/api/test_effects.py::test_c[x::y]") == "tests/api/test_effects.py"


def test_worker_runs_long_files_first(tmp_path):
    for name in ("api/test_short", "cluster/test_long"):
        path = tmp_path / f"tests/{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text("def test_a(): pass\ndef test_b(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.checks.schedule", "-p", "no:cacheprovider",
         "-n1", "--dist", "loadfile", "-v", "--rootdir", str(tmp_path), "tests"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": str(Path(schedule.__file__).parents[2])})
    ran = [line.split()[-1].partition("::")[0] for line in done.stdout.splitlines()
           if "PASSED" in line]
    assert ran == ["tests/cluster/test_long.py"] * 2 + ["tests/api/test_short.py"] * 2, done.stdout
