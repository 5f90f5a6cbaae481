"""Content of packages, and a wheel that works with nothing but Python."""

import datetime
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from release import components, targets, wheels
from release.targets import TARGETS
from tests.fixtures.brokers import REPOSITORY

NEEDED_OF_GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
                   "ld-linux-x86-64.so.2"}


@pytest.fixture(scope="module", autouse=True)
def commit_time():
    """Give all builds the time of the commit, as releases do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", str(wheels.commit_time()))
        yield


@pytest.fixture(scope="module")
def archived(tmp_path_factory) -> Path:
    return wheels.sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def packed(archived) -> set[str]:
    """Return the names in the sdist, below its top folder."""
    with tarfile.open(archived) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def tracked(*patterns: str) -> set[str]:
    done = subprocess.run(["git", "ls-files", *patterns], cwd=REPOSITORY, check=True,
                          capture_output=True, text=True)
    return set(done.stdout.split())


def test_the_sdist_holds_every_file_of_the_repository(packed):
    """Packagers build and test without the repository."""
    assert tracked("*") - packed == set()


def test_the_sdist_holds_nothing_that_was_built(packed):
    strangers = [name for name in packed if name.startswith("build/")
                 or name.endswith((".so", ".o", ".pyc"))
                 or name.startswith("pylog/_native/") and name.endswith(".c")]
    assert strangers == []


def test_two_sdists_of_one_commit_have_the_same_bytes(archived, tmp_path):
    previous = os.umask(0o077)
    try:
        again = wheels.sdist(tmp_path)
    finally:
        os.umask(previous)
    assert again.read_bytes() == archived.read_bytes()


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=REPOSITORY, check=True,
                          capture_output=True, text=True).stdout.strip()


def stamp() -> str:
    """Return the file `_commit.py` of a reproducible build."""
    date = datetime.datetime.fromtimestamp(wheels.commit_time(), datetime.UTC).date()
    return f'COMMIT = "{commit()}"\nDATE = "{date}"\n'


def built(tree: Path, folder: Path) -> str:
    """Return the stamp in the Python files that a wheel of `tree` has."""
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(folder)], cwd=tree,
        capture_output=True, text=True, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree)})
    assert done.returncode == 0, done.stderr
    return (folder / "pylog" / "_commit.py").read_text()


def test_sdist_and_the_wheels_built_from_it_name_the_commit_of_the_checkout(archived, tmp_path):
    with tarfile.open(archived) as archive:
        archive.extractall(tmp_path / "sdist", filter="data")
    [tree] = (tmp_path / "sdist").iterdir()
    assert not (tree / ".git").exists()
    assert (tree / "pylog" / "_commit.py").read_text() == stamp()
    assert built(tree, tmp_path / "lib") == stamp()


def test_stamped_commit_is_written_into_builds_only(archived, tmp_path):
    assert built(REPOSITORY, tmp_path / "lib") == stamp()
    assert not (REPOSITORY / "pylog" / "_commit.py").exists()


def test_sparks_jobs_are_packed_but_for_those_that_need_the_checkout(packed):
    jobs = {name.rpartition("/")[2] for name in packed if name.startswith("pylog/spark/")}
    assert {"load.py", "validate.py", "pipeline.py", "orders.py", "pom.xml"} <= jobs
    assert not jobs & {"trial.py", "soak.py", "comparison.py", "floor.py"}


def test_spark_jobs_describe_their_arguments_under_both_names():
    for name in ("spark.load", "pylog.spark.load", "pylog.spark.validate", "pylog.spark.orders",
                 "pylog.spark.pipeline"):
        done = subprocess.run([sys.executable, "-m", name, "--help"], cwd=REPOSITORY,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: python -m pylog.spark.{name.rpartition('.')[2]}")


@pytest.mark.parametrize("tag", TARGETS)
def test_wheel_target_is_consistent(tag):
    target = TARGETS[tag]
    assert target.tag == tag and tag.endswith(target.machine)
    assert target.zig.startswith(target.machine) and target.openssl.startswith("linux-")
    assert target.is_musl == ("musl" in target.zig)
    assert target.is_musl or tag.startswith("manylinux_2_28") == target.zig.endswith("gnu.2.28")


def test_every_compiler_command_names_its_target(monkeypatch):
    monkeypatch.setitem(sys.modules, "ziglang", type(targets)("ziglang"))
    sys.modules["ziglang"].__file__ = "/somewhere/ziglang/__init__.py"
    target = TARGETS["musllinux_1_2_aarch64"]
    assert target.tool("cc")[:4] == ["/somewhere/ziglang/zig", "cc", "-target",
                                     "aarch64-linux-musl"]
    assert target.tool("ar") == ["/somewhere/ziglang/zig", "ar"]
    assert set(target.environment()) == {"CC", "CXX", "AR", "RANLIB"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_wheel_needs_no_library_and_works_in_a_bare_root(tmp_path):
    pytest.importorskip("ziglang")
    from release import bare

    target = TARGETS["manylinux_2_28_x86_64"]
    made = wheels.wheel(wheels.unpacked(wheels.sdist(tmp_path)), target, "3.11", 2)
    wheels.audit(made, target)
    with zipfile.ZipFile(made) as archive:
        extensions = [name for name in archive.namelist() if name.endswith(".so")]
        assert archive.read("pylog/_commit.py").decode() == stamp()
        contents = {name.partition(".dist-info/")[2] for name in archive.namelist()}
        bill = json.loads(archive.read(next(
            name for name in archive.namelist() if name.endswith("sboms/pylog-broker.cdx.json"))))
        archive.extractall(tmp_path / "wheel")
    assert {f"licenses/LICENSE.{part['name']}" for part in bill["components"]} < contents
    assert {part["name"] for part in bill["components"]} == set(components.EXPRESSIONS)
    assert len(extensions) == len(tracked("pylog/_native/**/*.pyx"))
    for name in extensions:
        done = subprocess.run(["readelf", "-dW", str(tmp_path / "wheel" / name)], check=True,
                              capture_output=True, text=True)
        needed = {line.rpartition("[")[2].rstrip("]") for line in done.stdout.splitlines()
                  if "(NEEDED)" in line}
        assert needed <= NEEDED_OF_GLIBC, (name, needed)
    assert "all of it works" in bare.proven(made)
