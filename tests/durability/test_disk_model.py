"""The power-cut model, on small programs with a known outcome."""

import random
import subprocess
import sys

import pytest

from tests.durability.disk import MAP, PowerCut, environment, read_record, shim


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return shim(tmp_path_factory.mktemp("shim"))


def _run(library, folder, program: str):
    """Record `program`, run in an empty root; return the events and the root."""
    root = folder / "root"
    root.mkdir()
    record = folder / "record"
    text = ("import os\n"
            "def sync_folder(path):\n"
            "    fd = os.open(path, os.O_RDONLY)\n"
            "    os.fsync(fd)\n"
            "    os.close(fd)\n" + program)
    subprocess.run([sys.executable, "-c", text], cwd=root, check=True,
                   env={**environment(library, root, record), "PATH": "/usr/bin:/bin"})
    return read_record(record), root


def _synced_disk(events, root, goal) -> dict[str, bytes]:
    PowerCut(events, root).write_to(goal)
    return {str(path.relative_to(goal)): path.read_bytes()
            for path in goal.rglob("*") if path.is_file()}


def test_only_synced_bytes_of_synced_names_survive(library, tmp_path):
    events, root = _run(library, tmp_path, """
fd = os.open("a", os.O_CREAT | os.O_RDWR)
os.pwrite(fd, b"safe", 0)
os.fdatasync(fd)
os.pwrite(fd, b"lost", 4)
other = os.open("b", os.O_CREAT | os.O_RDWR)
os.write(other, b"named nowhere")
sync_folder(".")
late = os.open("c", os.O_CREAT | os.O_RDWR)
os.write(late, b"synced, but its name is not")
os.fsync(late)
""")
    assert _synced_disk(events, root, tmp_path / "cut") == {"a": b"safe", "b": b""}


def test_child_process_is_not_recorded(library, tmp_path):
    events, root = _run(library, tmp_path, """
import subprocess, sys
fd = os.open("a", os.O_CREAT | os.O_RDWR)
os.write(fd, b"safe")
os.fsync(fd)
sync_folder(".")
subprocess.run([sys.executable, "-c", "open('b', 'wb').write(b'other')"], check=True)
""")
    assert _synced_disk(events, root, tmp_path / "cut") == {"a": b"safe"}


def test_rename_is_lost_without_a_sync_of_its_directory(library, tmp_path):
    events, root = _run(library, tmp_path, """
for name, text in (("f", b"old"), ("f.tmp", b"new")):
    fd = os.open(name, os.O_CREAT | os.O_RDWR)
    os.write(fd, text)
    os.fsync(fd)
sync_folder(".")
os.rename("f.tmp", "f")
""")
    disk = _synced_disk(events, root, tmp_path / "cut")
    assert disk == {"f": b"old", "f.tmp": b"new"}
    PowerCut(events, root).write_to(tmp_path / "some", random.Random(1))
    for seed in range(20):
        goal = tmp_path / f"some{seed}"
        PowerCut(events, root).write_to(goal, random.Random(seed))
        assert (goal / "f").read_bytes() in (b"old", b"new")


def test_synced_directories_survive_with_their_files(library, tmp_path):
    events, root = _run(library, tmp_path, """
os.mkdir("t-0")
sync_folder(".")
fd = os.open("t-0/00.log", os.O_CREAT | os.O_RDWR)
os.posix_fallocate(fd, 0, 10)
os.pwrite(fd, b"xy", 3)
os.fdatasync(fd)
sync_folder("t-0")
os.ftruncate(fd, 4)
os.mkdir("gone")
open("gone/file", "w").write("x")
""")
    assert _synced_disk(events, root, tmp_path / "cut") == {
        "t-0/00.log": bytes(3) + b"xy" + bytes(5)}
    assert not (tmp_path / "cut" / "gone").exists()


def test_writes_through_o_dsync_are_safe_without_a_sync(library, tmp_path):
    events, root = _run(library, tmp_path, """
fd = os.open("a", os.O_CREAT | os.O_RDWR | os.O_DSYNC)
os.write(fd, b"meta")
sync_folder(".")
""")
    assert _synced_disk(events, root, tmp_path / "cut") == {"a": b"meta"}


def test_sync_covers_only_writes_before_its_start(library, tmp_path):
    events, root = _run(library, tmp_path, """
fd = os.open("a", os.O_CREAT | os.O_RDWR)
sync_folder(".")
for number in range(5):
    os.write(fd, b"%d" % number)
    os.fsync(fd)
""")
    lengths = set()
    for count in range(len(events) + 1):
        goal = tmp_path / f"cut{count}"
        goal.mkdir()
        PowerCut(events, root, count).write_to(goal)
        lengths.add(len((goal / "a").read_bytes()) if (goal / "a").exists() else -1)
    assert lengths == {-1, 0, 1, 2, 3, 4, 5}


def test_shared_writable_maps_are_detected(library, tmp_path):
    events, _ = _run(library, tmp_path, """
import mmap
fd = os.open("a", os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 4096)
mmap.mmap(fd, 4096)
""")
    assert [event.path.rpartition("/")[2] for event in events if event.type == MAP] == ["a"]


def test_a_sync_of_the_file_system_covers_every_file_and_name(library, tmp_path):
    events, root = _run(library, tmp_path, """
import ctypes
fd = os.open("a", os.O_CREAT | os.O_RDWR)
os.write(fd, b"safe")
os.mkdir("folder")
ctypes.CDLL(None).syncfs(fd)
os.write(fd, b"lost")
""")
    assert _synced_disk(events, root, tmp_path / "cut") == {"a": b"safe"}
    assert (tmp_path / "cut" / "folder").is_dir()


def test_renamed_directory_keeps_its_files(library, tmp_path):
    events, root = _run(library, tmp_path, """
os.mkdir("old")
fd = os.open("old/file", os.O_CREAT | os.O_RDWR)
os.write(fd, b"safe")
os.fsync(fd)
sync_folder("old")
os.rename("old", "new")
sync_folder(".")
os.open("new/file", os.O_CREAT | os.O_RDWR)
os.rename("new", "newest")
""")
    assert _synced_disk(events, root, tmp_path / "cut") == {"new/file": b"safe"}


def test_reused_inode_is_another_file(library, tmp_path):
    events, root = _run(library, tmp_path, """
fd = os.open("a", os.O_CREAT | os.O_RDWR)
os.write(fd, b"safe")
os.fsync(fd)
sync_folder(".")
os.close(fd)
os.unlink("a")
fd = os.open("b", os.O_CREAT | os.O_RDWR)
os.write(fd, b"another")
os.fsync(fd)
""")
    assert _synced_disk(events, root, tmp_path / "cut") == {"a": b"safe"}
