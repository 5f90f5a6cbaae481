"""The contents of a disk after a power loss that followed several runs of one broker."""

import os
import subprocess
import sys

import pytest

from tests.chaos.power import Disk
from tests.durability.disk import environment, shim


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def disk(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "old").write_bytes(b"old")
    (data / "etcd").mkdir()
    (data / "etcd" / "own").write_bytes(b"its own")
    return Disk(data, tmp_path / "records")


def run(disk, library, program: str) -> None:
    text = ("import os\n"
            "def write(name, at, data, synced):\n"
            "    file = os.open(name, os.O_RDWR | os.O_CREAT)\n"
            "    os.pwrite(file, data, at)\n"
            "    if synced: os.fsync(file)\n"
            "    os.close(file)\n"
            "def sync(name='.'):\n"
            "    file = os.open(name, os.O_RDONLY); os.fsync(file); os.close(file)\n" + program)
    subprocess.run([sys.executable, "-c", text], cwd=disk.data, check=True, env={
        **os.environ, **environment(library, disk.data, disk.next_record())})


def left(disk) -> dict:
    return {str(path.relative_to(disk.data)): path.read_bytes()
            for path in disk.data.rglob("*") if path.is_file() and "etcd" not in path.parts}


def test_unsynced_data_of_all_runs_is_lost(disk, library):
    run(disk, library, "write('old', 3, b' and safe', True)\nwrite('old', 12, b' lost', False)")
    run(disk, library, "write('old', 17, b' lost too', False)")
    disk.cut(None)
    assert left(disk) == {"old": b"old and safe"}
    assert (disk.data / "etcd" / "own").read_bytes() == b"its own"


def test_later_run_syncs_writes_of_an_earlier_one(disk, library):
    run(disk, library, "write('old', 3, b' and', False)\nwrite('new', 0, b'new', False)")
    run(disk, library, "write('old', 7, b' safe', True)\nsync('new')\nsync()")
    disk.cut(None)
    assert left(disk) == {"old": b"old and safe", "new": b"new"}


def test_renamed_file_keeps_its_id(disk, library):
    run(disk, library, "os.mkdir('folder')\nos.rename('old', 'folder/moved')\n"
                       "sync('folder')\nsync()")
    run(disk, library, "write('folder/moved', 0, b'NEW', True)\nos.rename('folder', 'other')")
    disk.cut(None)
    assert left(disk) == {"folder/moved": b"NEW"}
    run(disk, library, "os.unlink('folder/moved')\nwrite('folder/moved', 0, b'another', True)\n"
                       "sync('folder')")
    disk.cut(None)
    assert left(disk) == {"folder/moved": b"another"}


def test_random_part_of_unsynced_data_survives(disk, library):
    run(disk, library, "for at in range(8): write('old', at, b'x', False)")
    disk.cut(4)
    assert left(disk)["old"].startswith((b"x", b"o")) and left(disk)["old"] != b"old"
