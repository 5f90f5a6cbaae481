"""The commit in --version: from the stamp of a build, from the checkout, or unknown."""

import subprocess
import sys
import types

import pylog
from pylog import version


def test_version_of_a_build_names_its_stamped_commit(monkeypatch):
    stamp = types.ModuleType("pylog._commit")
    stamp.COMMIT = "1a2b3c4d5e6f"
    monkeypatch.setitem(sys.modules, "pylog._commit", stamp)
    assert version.version() == f"{pylog.__version__}, commit 1a2b3c4d5e6f"


def test_version_outside_a_checkout_shows_an_unknown_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(version, "__file__", str(tmp_path / "pylog" / "version.py"))
    assert version.version() == f"{pylog.__version__}, commit unknown"


def test_version_inside_another_checkout_does_not_name_its_commit(monkeypatch, tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(version, "__file__", str(tmp_path / "pylog" / "version.py"))
    assert version.commit() is None
