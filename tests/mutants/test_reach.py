"""Probes do not change behaviour, and they record which tests reach a line."""

import subprocess
import textwrap

import pytest

from tests.mutants import parts, probes, reach, runs
from tests.mutants.reach_plugin import ranges
from tests.mutants.sites import Site
from tests.mutants.test_mutants import SETUP
from tests.mutants.trees import Tree

C_SOURCE = """\
#include <stdio.h>
struct pair { int a, b; };
static int ranked(int n,
                  int low) {
    struct pair p = (struct pair){
        n, low,
    };
    int after[] = {
        1, 2
    };
    if (n > low) {
        p.a++;
        return p.a;
    } else if (n == 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        switch (n) {
        case 1: p.b += after[i]; break;
        default:
            p.b--;
            break;
        }
    }
    if (n == 7) {
        p.b = 7;
    }
    do {
        p.b++;
    } while (p.b < 0);
    return p.b;
}
int main(void) {
    printf("%d %d", ranked(3, 1), ranked(1, 2));
    return 0;
}
"""
PYTHON_SOURCE = '''\
"""Docs."""
from __future__ import annotations


def ranked(n, low=(1,
                   2)):
    """More docs."""
    global seen
    if n > low[0]:
        return [n for n in low]
    try:
        seen = n + \\
            1
    finally:
        n += 1
    while n < 0:
        n += 1
    else:
        n = -n
    return n
'''
SOURCE = "def above(n):\n    if n > 9:\n        return 9\n    return n\n"
TESTS = """
    from small_package import small

    def test_few():
        assert small.above(3) == 3

    def test_many():
        assert small.above(30) == 9
"""


def test_probed_program_behaves_the_same_and_records_its_statements(tmp_path):
    text, lines = probes.probed("x.c", C_SOURCE, 5)
    (tmp_path / "x.c").write_text(text)
    (tmp_path / "os").mkdir()
    (tmp_path / "os/reach.h").write_text(probes.C_TEXT)
    (tmp_path / "cells").write_bytes(bytes(probes.CELLS))
    subprocess.run(["gcc", "-Wall", "-Werror", "-I.", "x.c", "-o", "x"], cwd=tmp_path, check=True)
    done = subprocess.run(["./x"], cwd=tmp_path, check=True, capture_output=True, text=True,
                          env={probes.FILE_VARIABLE: "cells"})
    assert done.stdout == "4 6"
    assert [begin for begin, _ in lines] == [5, 8, 11, 12, 13, 16, 17, 24, 25, 27, 28, 30, 33, 34]
    cells = (tmp_path / "cells").read_bytes()
    reached = {cell - 5 for first, last in ranges(cells) for cell in range(first, last + 1)}
    assert {lines[number][0] for number in reached} == {
        5, 8, 11, 12, 13, 16, 17, 24, 27, 28, 30, 33, 34}


def test_probed_module_behaves_the_same_and_records_its_statements():
    text, lines = probes.probed("x.py", PYTHON_SOURCE, 3)
    cells = bytearray(20)
    names = {"reach_cells": cells}
    exec(text.replace("from pylog.reach import cells as reach_cells", ""), names)
    assert names["ranked"].__doc__ == "More docs."
    assert names["ranked"](1) == -2 and names["seen"] == 2
    reached = {cell - 3 for first, last in ranges(cells) for cell in range(first, last + 1)}
    assert {lines[number] for number in range(len(lines))} - {
        lines[number] for number in reached} == {(10, 10), (17, 17)}
    assert (5, 9) in lines and (12, 13) in lines


def test_cells_are_reported_as_ranges():
    assert ranges(bytes([0, 1, 1, 0, 1])) == [[1, 2], [4, 4]]
    assert ranges(bytes(3)) == [] and ranges(b"\1\1") == [[0, 1]]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    root = tmp_path / "tree"
    given = {"setup.py": SETUP, "tests/test_small.py": TESTS, "pylog/__init__.py": "",
             "csrc/os/small.c": "int twice(int n) {\n    return 2 * n;\n}\n",
             "csrc/small.c": "int more(int n) {\n    return n + 1;\n}\n",
             "small_package/small.py": SOURCE, "small_package/__init__.py": "",
             ".gitignore": "build/\n*.so\n"}
    for name, text in given.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(text))
    for name in ("__init__", "reach_plugin", "chosen_plugin"):
        path = root / f"tests/mutants/{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text((parts.ROOT / f"tests/mutants/{name}.py").read_text())
    (root / "tests/__init__.py").touch()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.setattr(parts, "PARTS", {
        "small": parts.Part(("small_package/small.py",), ("tests/test_*.py",), ())})
    # Other plugins would add a second to each of the many starts.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    noting = reach.Noting(root, root / "build/reach")
    noting.prepare()
    assert "2 passed" in noting.note("tests/test_small.py")
    return root


def _tests(tree, line: int) -> set[str]:
    text = (tree / "small_package/small.py").read_text()
    found = reach.Reach(tree / "build/reach").tests("small_package/small.py", line, text)
    return {test.node.partition("::")[2] for test in found}


def test_tests_of_a_moved_line_are_found(tree):
    assert _tests(tree, 2) == {"test_few", "test_many"}
    assert (_tests(tree, 3), _tests(tree, 4)) == ({"test_many"}, {"test_few"})
    (tree / "small_package/small.py").write_text("import os\n\n\n" + SOURCE)
    assert (_tests(tree, 6), _tests(tree, 7)) == ({"test_many"}, {"test_few"})


def test_only_tests_that_reach_a_mutant_and_new_tests_run(tree):
    known = reach.Reach(tree / "build/reach")
    runner = runs.Runner(Tree(tree), wide=False, reach=known)
    runner.prepare()
    nine = Site("small_package/small.py", "planted", SOURCE.index("9\n    return n"),
                SOURCE.index("9\n    return n") + 1, "8")
    [stage] = runner._stages("small", nine)
    assert stage.chosen == ["tests/test_small.py::test_many"]
    assert runner.judge("small", nine).by == "tests/test_small.py::test_many"
    test = tree / "tests/test_small.py"
    test.write_text(test.read_text() + "# changed\n")
    [stage] = runner._stages("small", nine)
    assert (stage.files, stage.chosen) == (["tests/test_small.py"], None)


