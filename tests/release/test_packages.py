"""The make targets that install Debian packages, with a stub of apt-get."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDS = ["BUILD_NEEDS=no-such-command=first-package", "TRIAL_NEEDS=no-such-tool=second-package",
         "TEST_NEEDS=no-such-tester=third-package"]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def run(tmp_path):
    """Return a function that runs make as root with a stub of apt-get; it returns the process and
    the calls of the stub."""
    calls = tmp_path / "calls"
    calls.touch()
    for name, line in {"apt-get": f'echo "$@" >> {calls}', "id": "echo 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)

    def run(*arguments, **variables):
        environment = {key: value for key, value in os.environ.items()
                       if key not in ("INSTALL", "MAKEFLAGS", "MAKELEVEL")}
        done = subprocess.run(
            ["make", "--no-print-directory", *NEEDS, f"VENV={tmp_path / 'venv'}", *arguments],
            cwd=ROOT, capture_output=True, text=True, timeout=60,
            env={**environment, "PATH": f"{tmp_path}:{os.environ['PATH']}", **variables})
        return done, calls.read_text()

    return run


def test_trial_names_missing_packages_in_one_line_and_installs_none(run):
    done, calls = run("trial")
    assert done.returncode != 0 and calls == ""
    assert done.stderr.splitlines()[0] == (
        "missing, please install (Debian names): first-package second-package. "
        "INSTALL=1 installs them with apt")


@pytest.mark.parametrize("as_variable", [False, True])
def test_trial_installs_packages_on_request(run, as_variable):
    _, calls = (run("trial-needs", INSTALL="1") if as_variable
                else run("trial-needs", "INSTALL=1"))
    assert "install -y -qq first-package second-package" in calls


def test_other_targets_install_required_packages(run, tmp_path):
    (tmp_path / "venv").mkdir()
    for stamp in (".built", ".develop"):
        (tmp_path / "venv" / stamp).touch()
    done, calls = run(str(tmp_path / "venv" / ".tested"))
    assert done.returncode == 0, done.stderr
    assert "install -y -qq third-package" in calls
