"""Every Python name that the documentation contains can be imported."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from tests.checks import tidy

ROOT = Path(__file__).resolve().parent.parent
PAGES = [name for name in tidy.tracked(ROOT)
         if name.endswith(".md") and not name.startswith(("bench/", "CHANGELOG"))]
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"\bfrom (pylog(?:\.\w+)*) import (\w+(?:, \w+)*)")
DOTTED = re.compile(r"`(pylog\.(?:client|testing|security|spark)(?:\.\w+)*)`")
# Import paths that users have in their programs, documented or not.
PUBLIC = {"pylog.client", "pylog.client.aio", "pylog.client.errors", "pylog.client.serialization",
          "pylog.client.spark", "pylog.client.telemetry", "pylog.testing", "pylog.testing.plugin"}


def documented(text: str) -> set[str]:
    """Return the dotted names that a page imports or writes in backticks."""
    names = set(DOTTED.findall(text))
    for module, imported in IMPORT.findall(text):
        names |= {f"{module}.{name}" for name in imported.split(", ")}
    for code in CODE.findall(text):
        try:
            nodes = list(ast.walk(ast.parse(code)))
        except SyntaxError:  # Part of a program; its import lines are found above.
            continue
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pylog"):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def load(name: str) -> object:
    """Import a module, or return an attribute of one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        owner, _, attribute = name.rpartition(".")
        if error.name != name or not owner:
            raise
        return getattr(load(owner), attribute)


def names() -> list[str]:
    found = PUBLIC | {name for page in PAGES for name in documented((ROOT / page).read_text())}
    # A stub for type checkers, without a module.
    return sorted(name for name in found if not name.startswith("pylog.client.options"))


@pytest.mark.parametrize("name", names())
def test_documented_name_can_be_imported(name):
    assert load(name) is not None


@pytest.mark.parametrize("module", ["pylog.client", "pylog.client.aio", "pylog.testing"])
def test_every_exported_name_can_be_imported(module):
    found = importlib.import_module(module)
    assert [name for name in found.__all__ if getattr(found, name, None) is None] == []


def test_names_are_found_in_code_and_in_text():
    text = ("See `pylog.client.aio`.\n```python\nfrom pylog.client import (\n    Admin, Consumer)\n"
            "```\n`from pylog.testing import Broker`\n")
    assert documented(text) == {"pylog.client.aio", "pylog.client.Admin", "pylog.client.Consumer",
                                "pylog.testing.Broker"}
