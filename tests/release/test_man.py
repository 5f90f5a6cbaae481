"""The man pages agree with the commands and are valid."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from pylog import __version__, cli
from pylog.tools import app
from release import man

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/man"


@pytest.fixture(scope="module")
def pages():
    return man.pages(man.date_of((ROOT / "CHANGELOG.md").read_text(), __version__))


def test_pages_are_current(pages):
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == pages, "run `make docs`"


def test_every_command_has_a_page(pages):
    names = {name for rows in app.COMMANDS.values() for name in rows}
    assert set(pages) == {"brokerd.1", "pylog.1", *[f"pylog-{name}.1" for name in names]}
    assert all(f".B brokerd {man.roff(name)}\n" in pages["brokerd.1"] for name in cli.COMMANDS)


def test_pages_are_installed_by_wheels():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["data-files"] == {"share/man/man1": ["docs/man/*.1"]}


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs mandoc")
def test_mandoc_finds_no_fault():
    done = subprocess.run(["mandoc", "-Tlint", *map(str, FOLDER.iterdir())], capture_output=True,
                          text=True)
    assert done.stdout == "" and done.returncode == 0


def test_text_that_troff_would_interpret_is_quoted():
    assert man.roff(".log files\n'x' a\\b -v ~/") == "\\&.log files\n\\&'x' a\\eb \\-v \\(ti/"


def test_version_without_a_date_is_reported():
    with pytest.raises(SystemExit, match="add a heading `## 9.9.9 - YYYY-MM-DD`"):
        man.date_of("# Changelog\n\n## 9.9.9\n", "9.9.9")
