"""An unrelated package `pylog` over this one: commands and imports report it with the remedy."""

import subprocess
import sys
from pathlib import Path

import pytest

from pylog import installation

ROOT = Path(__file__).resolve().parent.parent
REMEDY = "pip uninstall pylog; pip install --force-reinstall --no-deps pylog-broker"


@pytest.fixture
def overwritten(tmp_path) -> Path:
    """Return a folder with this package after another one replaced its `__init__.py`."""
    package = tmp_path / "pylog"
    package.mkdir()
    for entry in (ROOT / "pylog").iterdir():
        if entry.name not in ("__init__.py", "__pycache__"):
            (package / entry.name).symlink_to(entry)
    (package / "__init__.py").write_text('name = "pylog"\n')
    (package / "logic_variables.py").touch()
    metadata = tmp_path / "pylog-1.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pylog\nVersion: 1.1\n")
    return tmp_path


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code with the package in `folder`. -S hides the intact one that tests run with."""
    return subprocess.run([sys.executable, "-S", "-B", "-c", code], cwd=folder, capture_output=True,
                          text=True, timeout=60, env={"PYTHONPATH": str(folder)})


@pytest.mark.parametrize("command", ["brokerd", "pylog"])
def test_commands_name_the_other_package_and_the_remedy_in_one_line(overwritten, command):
    done = run(overwritten, f"import sys, pylog.cli; sys.exit(pylog.cli.{command}(['--version']))")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        f"{command}: the unrelated package pylog 1.1 replaced a file of pylog-broker: "
        f"{overwritten}/pylog/__init__.py. Repair it: {REMEDY}\n")


def test_imports_of_the_client_name_the_remedy(overwritten):
    done = run(overwritten, "import pylog.client")
    assert done.stderr.splitlines()[-1].startswith("ImportError: the unrelated package pylog 1.1")
    assert REMEDY in done.stderr


def test_file_removed_with_the_other_package_is_reported(overwritten):
    """Uninstalling the other package removes the file that it had replaced."""
    (overwritten / "pylog-1.1.dist-info/METADATA").unlink()
    (overwritten / "pylog-1.1.dist-info").rmdir()
    (overwritten / "pylog/__init__.py").unlink()
    done = run(overwritten, "import sys, pylog.cli; sys.exit(pylog.cli.brokerd(['--version']))")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"replaced or removed a file of pylog-broker: {overwritten}/pylog/__init__.py" in (
        done.stderr)


def test_an_intact_installation_is_not_reported():
    assert installation.problem() is None
