from pathlib import PurePath

import pytest

from tests.checks import layers, tidy


def said(path: str, text: str) -> list[str]:
    return [message for _, message in layers.upward(PurePath(path), text)]


@pytest.mark.parametrize(("path", "text"), [
    ("pylog/log/x.py", "from pylog.api import topics\n"),
    ("pylog/log/x.py", "from ..replication.roles import Role\n"),
    ("pylog/log/x.py", "from .. import broker\n"),
    ("pylog/log/x.py", "from pylog import security\n"),
    ("pylog/config/x.py", "def f():\n    import pylog.protocol.errors\n"),
    ("pylog/_native/x.pyx", "from pylog.config import Settings\n"),
    ("pylog/_native/x.pyx", "from ..log cimport segment\n"),
    ("pylog/broker/broker.py", "from .. import cli\n"),
])
def test_an_import_that_points_up_or_sideways_is_found(path, text):
    assert len(said(path, text)) == 1 and "not below" in said(path, text)[0]


@pytest.mark.parametrize(("path", "text"), [
    ("pylog/log/x.py",
     "import asyncio\nfrom pylog._native.records import batch\nfrom . import roll\n"),
    ("pylog/api/x.py", "from ..protocol.errors import ErrorCode\nfrom ..config import Settings\n"),
    ("pylog/_native/x.pyx", "cimport cython\nfrom .csrc cimport batch_check\nimport os, sys\n"),
    ("pylog/cli.py", "from . import __version__, broker\n"),
])
def test_an_import_that_points_down_passes(path, text):
    assert said(path, text) == []


def test_a_package_without_a_layer_is_found():
    found = said("pylog/attic/x.py", "from ..log import x\n")
    assert found == ["attic has no rank in tests/checks/layers.py"]


@pytest.mark.parametrize(("path", "text", "message"), [
    ("bench/x.py", "from spark import plan\n", "bench imports spark, which is not below it"),
    ("pylog/log/x.py", "import bench.kafka\n", "pylog imports bench.kafka, which is not below it"),
    ("spark/x.py", "from tests import brokers\n", "spark imports tests, which is not below it"),
])
def test_upward_import_is_reported(path, text, message):
    assert list(layers.out_of_tree_order(PurePath(path), text)) == [(1, message)]


def test_folders_import_those_below_them():
    text = "from bench import kafka\nfrom pylog.client import Admin\nfrom pyspark.sql import Row\n"
    assert list(layers.out_of_tree_order(PurePath("spark/x.py"), text)) == []
    assert list(layers.out_of_tree_order(PurePath("setup.py"), text)) == []


@pytest.mark.parametrize(("path", "text", "message"), [
    ("csrc/log/x.c", '#include "net/reactor.h"\n', "log includes net/reactor.h, which is not"),
    ("csrc/columns/x.c", '#include "log/log.h"\n', "columns includes log/log.h, which is not"),
    ("csrc/attic/x.c", '#include "log/log.h"\n', "log/log.h has no rank"),
    ("csrc/log/x.c", '#include "log.h"\n', "log.h has no rank"),
])
def test_an_include_that_points_up_or_nowhere_is_found(path, text, message):
    (line, _, found), = layers.c_upward(PurePath(path), text)
    assert line == 1 and found.startswith(message)


def test_an_include_that_points_down_passes():
    text = '#include "log/log.h"\n#include "format/bytes.h"\n#include <stdio.h>\n'
    assert list(layers.c_upward(PurePath("csrc/log/x.c"), text)) == []


@pytest.fixture
def ranked(monkeypatch):
    monkeypatch.setattr(layers, "INSIDE", {"log": ("errors", "files", "files/maps", ".", "facade")})


def found_inside(path: str, text: str) -> list[str]:
    return [module for _, _, module in layers.inside(PurePath(path), text)]


@pytest.mark.parametrize(("path", "text", "module"), [
    ("pylog/log/files/x.py", "from pylog.log.facade import y\n", "pylog.log.facade"),
    ("pylog/log/files/x.py", "from pylog.log import facade\n", "pylog.log.facade"),
    ("pylog/log/files/x.py", "from .maps import page\n", "pylog.log.files.maps"),
    ("pylog/log/errors.py", "from pylog.log.files import x\n", "pylog.log.files"),
    ("pylog/log/x.py", "from pylog.log import facade\n", "pylog.log.facade"),
])
def test_an_import_of_a_higher_folder_of_the_package_is_found(ranked, path, text, module):
    assert found_inside(path, text) == [module]


@pytest.mark.parametrize(("path", "text"), [
    ("pylog/log/files/x.py", "from pylog.log.errors import LogError\nfrom .y import z\n"),
    ("pylog/log/files/maps/x.py", "from pylog.log.files.y import z\n"),
    ("pylog/log/facade.py", "from pylog.log.x import y\nfrom pylog.api import topics\n"),
    ("pylog/log/__init__.py", "from pylog.log import facade\n"),
    ("pylog/api/x.py", "from pylog.log.facade import y\n"),
])
def test_an_import_of_a_lower_folder_of_the_package_passes(ranked, path, text):
    assert found_inside(path, text) == []


def test_each_exception_to_the_size_of_folders_is_needed():
    paths = [PurePath(name) for name in tidy.tracked(tidy.ROOT)]
    assert {folder for folder, _ in layers.crowded(paths)} == layers.CROWDED


def test_a_folder_with_too_many_modules_is_found():
    paths = [PurePath(f"pylog/log/m{n}.py") for n in range(20)]
    assert list(layers.crowded([*paths, PurePath("pylog/log/__init__.py")])) == []
    assert list(layers.crowded([*paths, PurePath("pylog/log/x.pyx")])) == [("pylog/log", 21)]


def test_no_include_of_c_points_upward():
    found = {(name, header) for name in tidy.tracked(tidy.ROOT)
             if name.startswith("csrc/") and name.endswith((".c", ".h"))
             for _, header, _ in layers.c_upward(PurePath(name), (tidy.ROOT / name).read_text())}
    assert found == set()


def cycles(**texts):
    """Return the cycles among modules of pylog/log, by stem."""
    found = layers.cycles({PurePath(f"pylog/log/{name}.py"): text for name, text in texts.items()})
    return sorted(sorted(PurePath(path).stem for path in group) for group in found)


def test_import_cycle_is_found():
    assert cycles(a="from pylog.log import b\n", b="from . import c\n",
                  c="from pylog.log.a import x\n",
                  d="from pylog.log import a\n") == [["a", "b", "c"]]


def test_import_for_type_checkers_or_inside_a_function_closes_a_cycle():
    assert cycles(
        a="if TYPE_CHECKING:\n    from pylog.log.b import B\n",
        b="def f():\n    import pylog.log.a\n") == [["a", "b"]]


def test_imports_without_a_cycle_pass():
    assert cycles(a="from pylog.log import b, c\n", b="from pylog.log.c import x\n",
                  c="import asyncio\nfrom pylog.api import topics\n") == []


def test_package_that_imports_its_module_is_a_cycle_only_if_the_module_imports_it():
    assert cycles(__init__="from pylog.log.a import x\n", a="from pylog.log import b\n", b="") == []
    assert cycles(__init__="from pylog.log.a import x\n", a="from pylog.log import x\n") \
        == [["__init__", "a"]]


@pytest.mark.parametrize("modules", [
    ("consumer", "consuming"), ("observer", "observed"), ("transaction", "transactions"),
    ("assignment", "assigned")])
def test_modules_with_names_differing_only_in_endings_are_reported(modules):
    paths = [PurePath(f"pylog/log/{name}.py") for name in modules]
    assert list(layers.twins(paths)) == [("pylog/log", sorted(modules))]


def test_modules_with_different_names_pass():
    paths = [PurePath(path) for path in (
        "pylog/log/transaction.py", "pylog/log/transaction_service.py",
        "pylog/api/transactions.py", "pylog/log/batch.pyi", "pylog/log/batch.pyx",
        "pylog/log/keys.py", "pylog/log/key_value.py")]
    assert list(layers.twins(paths)) == []
