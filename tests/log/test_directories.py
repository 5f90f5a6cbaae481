"""Files beside the logs on a disk that fails, and partitions that found no room."""

import errno
import os

import pytest

from pylog._native.log import DISK_FULL, DISK_SYSTEM
from pylog.log import checkpoints
from pylog.log.directories import Directories
from tests.metadata.node import Node


@pytest.mark.parametrize("code, offline", [(errno.EIO, True), (errno.EROFS, True),
                                           (errno.ENOSPC, False)])
def test_a_checkpoint_that_cannot_be_written_is_a_fault_of_the_disk_unless_it_is_full(
        tmp_path, monkeypatch, code, offline):
    node = Node(tmp_path)
    node.create("a")

    def refused(path, offsets):
        raise OSError(code, os.strerror(code), path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_offsets", refused)
        node.logs._write_checkpoint_files()
    assert node.logs.directories[0].offline is offline
    if offline:
        assert node.logs.take_failed() == [("a", 0)]
        assert node.logs.take_failed() == [] and node.logs.is_offline("a", 0)
        assert str(tmp_path) in node.logs.disks.fatal()
    node.stop()


def test_a_partition_that_found_no_room_is_opened_when_there_is_some(tmp_path):
    node = Node(tmp_path)
    disk = node.logs.directories[0]
    disk.set_disk(DISK_FULL)
    # As metadata.service does it, whose records are on a disk with room here.
    node.logs.create("a", bytes(range(16)), [(True, 0, True)], {})
    assert node.logs.get("a", 0) is None and not disk.offline
    assert node.logs.finish_moves() == []
    disk.set_disk(DISK_SYSTEM)
    assert node.logs.finish_moves() == ["a"]
    assert node.logs.get("a", 0).is_leader
    assert node.logs.finish_moves() == []
    node.stop()


def test_a_long_name_is_set_aside_like_a_short_one(tmp_path):
    disks = Directories([str(tmp_path)], {"log.dir.free.bytes.min": 0}, None)
    disks.open()
    for name in ("t-0", "t" * 249 + "-0"):
        (tmp_path / name).mkdir()
        disks.set_aside(0, name)
        assert not (tmp_path / name).exists()
    assert disks.online(0)
    assert len(list(tmp_path.glob("t*-0.*-stray"))) == 2
    disks.close()


def test_new_partitions_go_where_the_fewest_are_and_the_disk_is_well(tmp_path):
    paths = [str(tmp_path / name) for name in "abc"]
    (tmp_path / "c").write_text("no directory")
    disks = Directories(paths, {"log.dir.free.bytes.min": 0}, None)
    disks.open()
    assert [number for number, _ in disks.usable()] == [0, 1]
    assert disks.newly_failed() == [] and disks.fatal() is None
    disks.loads[0] = 5
    assert disks.least_loaded() == 1
    disks.natives[1].look_at_space(1 << 62)
    assert disks.least_loaded() == 0
    disks.natives[1].look_at_space(0)
    assert disks.least_loaded() == 1
    disks.fail(1, OSError(errno.EIO, "broken"))
    assert disks.newly_failed() == [1] and disks.least_loaded() == 0
    disks.close()
