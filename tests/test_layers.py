from pathlib import PurePath

import pytest

from tests import layers


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
    ("pylog/broker.py", "from . import cli\n"),
])
def test_an_import_that_points_up_or_sideways_is_found(path, text):
    assert len(said(path, text)) == 1 and "not below" in said(path, text)[0]


@pytest.mark.parametrize(("path", "text"), [
    ("pylog/log/x.py", "import asyncio\nfrom pylog._native import batch\nfrom . import roll\n"),
    ("pylog/api/x.py", "from ..protocol.errors import ErrorCode\nfrom ..config import Settings\n"),
    ("pylog/_native/x.pyx", "cimport cython\nfrom .csrc cimport batch_check\nimport os, sys\n"),
    ("pylog/cli.py", "from . import __version__, broker\n"),
])
def test_an_import_that_points_down_passes(path, text):
    assert said(path, text) == []


def test_a_package_without_a_layer_is_found():
    found = said("pylog/attic/x.py", "from ..log import x\n")
    assert found == ["attic has no rank in tests/layers.py"]


@pytest.mark.parametrize(("path", "text", "message"), [
    ("bench/x.py", "from spark import plan\n", "bench imports spark, which is not below it"),
    ("pylog/log/x.py", "import bench.kafka\n", "pylog imports bench.kafka, which is not below it"),
    ("spark/x.py", "from tests import brokers\n", "spark imports tests, which is not below it"),
])
def test_a_folder_that_imports_one_above_it_is_found(path, text, message):
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
    (line, found), = layers.c_upward(PurePath(path), text)
    assert line == 1 and found.startswith(message)


def test_an_include_that_points_down_passes():
    text = '#include "log/log.h"\n#include "format/bytes.h"\n#include <stdio.h>\n'
    assert list(layers.c_upward(PurePath("csrc/log/x.c"), text)) == []
