"""Commit and date in --version: from the stamp of a build, from the checkout, or unknown."""

import datetime
import os
import subprocess
import sys
import types

import pylog
from pylog import version


def test_version_of_a_build_shows_its_stamped_commit_and_date(monkeypatch):
    stamp = types.ModuleType("pylog._commit")
    stamp.COMMIT, stamp.DATE = "1a2b3c4d5e6f", "2026-11-28"
    monkeypatch.setitem(sys.modules, "pylog._commit", stamp)
    monkeypatch.setattr(pylog, "_commit", stamp, raising=False)
    assert version.version() == f"{pylog.__version__}, commit 1a2b3c4d5e6f, built 2026-11-28"


def test_build_date_of_a_checkout_is_that_of_its_newest_native_module(monkeypatch, tmp_path):
    native = tmp_path / "pylog" / "_native" / "net"
    native.mkdir(parents=True)
    for name, day in (("old.so", 3), ("new.so", 5)):
        (native / name).touch()
        time = datetime.datetime(2026, 11, day, 12, tzinfo=datetime.UTC).timestamp()
        os.utime(native / name, (time, time))
    monkeypatch.setattr(version, "__file__", str(tmp_path / "pylog" / "version.py"))
    assert version.build_date() == "2026-11-05"


def test_version_outside_a_checkout_shows_unknown_commit_and_date(monkeypatch, tmp_path):
    monkeypatch.setattr(version, "__file__", str(tmp_path / "pylog" / "version.py"))
    assert version.version() == f"{pylog.__version__}, commit unknown, built unknown"


def test_version_inside_another_checkout_does_not_name_its_commit(monkeypatch, tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(version, "__file__", str(tmp_path / "pylog" / "version.py"))
    assert version.commit() is None
