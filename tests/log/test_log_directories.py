"""Files beside the logs on a failing disk, and partitions without disk space."""

import errno
import os

import pytest

from pylog._native.log.log import DISK_FULL, DISK_SYSTEM, Shortage
from pylog._native.records import batch
from pylog.config import Settings
from pylog.log import checkpoint_files, partition_logs, topic_branches
from pylog.log.log_directories import Directories
from pylog.log.partition_logs import Role
from tests.metadata.node import Node


@pytest.mark.parametrize("code, offline", [(errno.EIO, True), (errno.EROFS, True),
                                           (errno.ENOSPC, False), (errno.EMFILE, False),
                                           (errno.ENOMEM, False)])
def test_a_checkpoint_that_cannot_be_written_is_a_fault_of_the_disk_but_for_a_shortage(
        tmp_path, monkeypatch, code, offline):
    node = Node(tmp_path)
    node.create("a")

    def refused(path, offsets):
        raise OSError(code, os.strerror(code), path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_files, "write_offsets", refused)
        node.logs.checkpointer.write_files()
    assert node.logs.directories[0].offline is offline
    if offline:
        assert node.logs.take_failed() == [("a", 0)]
        assert node.logs.take_failed() == [] and node.logs.is_offline("a", 0)
        assert str(tmp_path) in node.logs.disks.fatal()
    node.stop()


def test_partition_is_opened_once_a_shortage_ends(tmp_path):
    node = Node(tmp_path)
    disk = node.logs.directories[0]
    disk.set_disk(DISK_FULL)
    # As metadata.service does it; its records are on a disk with free space here.
    node.logs.create("a", bytes(range(16)), [Role(True, 0, 1)], {})
    assert node.logs.get("a", 0) is None and not disk.offline
    assert node.logs.finish_moves() == []
    disk.set_disk(DISK_SYSTEM)
    assert node.logs.finish_moves() == ["a"]
    assert node.logs.get("a", 0).is_leader
    assert node.logs.finish_moves() == []
    node.stop()


def test_checkpoints_are_written_once_a_shortage_ends(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("a")
    one = node.logs.get("a", 0)
    one.append(batch.build([(b"k", b"v", node.now_ms(), ())]), node.now_ms())

    def refused(path, offsets):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_files, "write_offsets", refused)
        node.logs.checkpointer.write(node.service.store)
    assert not node.logs.directories[0].offline
    node.logs.checkpointer.write(node.service.store)
    path = tmp_path / checkpoint_files.RECOVERY_POINT
    assert checkpoint_files.read_offsets(path)["a", 0] == 1
    node.stop()


def test_a_partition_that_found_no_descriptor_at_the_start_is_opened_later(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("a")
    one = node.logs.get("a", 0)
    one.append(batch.build([(b"k", b"v", node.now_ms(), ())]), node.now_ms())
    node.stop()
    opened, refusals = partition_logs.open_log, []

    def refused(*arguments):
        if arguments[1] == "a" and not refusals:
            refusals.append(arguments)
            raise Shortage(-110, 56, "descriptors are short")
        return opened(*arguments)

    monkeypatch.setattr(partition_logs, "open_log", refused)
    node = Node(tmp_path)
    assert refusals and node.logs.get("a", 0) is None
    assert node.logs.finish_moves() == ["a"]
    assert (node.logs.get("a", 0).end_offset, node.logs.get("a", 0).is_leader) == (1, True)
    node.stop()


def test_long_directory_name_is_set_aside_like_a_short_one(tmp_path):
    disks = Directories([str(tmp_path)], Settings({"log.dir.min.free.bytes": "0"}), None)
    disks.open()
    for name in ("t-0", "t" * 249 + "-0"):
        (tmp_path / name).mkdir()
        disks.set_aside(0, name)
        assert not (tmp_path / name).exists()
    assert disks.online(0)
    assert len(list(tmp_path.glob("t*-0.*-stray"))) == 2
    disks.close()


def test_new_partitions_use_the_healthy_directory_with_the_fewest(tmp_path):
    paths = [str(tmp_path / name) for name in "abc"]
    (tmp_path / "c").write_text("no directory")
    disks = Directories(paths, Settings({"log.dir.min.free.bytes": "0"}), None)
    disks.open()
    assert [number for number, _ in disks.usable()] == [0, 1]
    assert disks.newly_failed() == [] and disks.fatal() is None
    disks.loads[0] = 5
    assert disks.least_loaded() == 1
    disks.natives[1].check_free_space(1 << 62)
    assert disks.least_loaded() == 0
    disks.natives[1].check_free_space(0)
    assert disks.least_loaded() == 1
    disks.fail(1, OSError(errno.EIO, "broken"))
    assert disks.newly_failed() == [1] and disks.least_loaded() == 0
    disks.close()


def test_cordoned_directory_gets_partitions_only_as_a_last_resort(tmp_path):
    paths = [str(tmp_path / name) for name in "ab"]
    settings = Settings({"log.dirs": ",".join(paths), "log.dir.min.free.bytes": "0"})
    disks = Directories(paths, settings, None)
    disks.open()
    disks.loads[1] = 5
    assert disks.least_loaded() == 0 and not disks.is_cordoned(0)
    settings.set_dynamic({}, {"cordoned.log.dirs": paths[0]})
    assert disks.least_loaded() == 1 and disks.is_cordoned(0)
    settings.set_dynamic({}, {"cordoned.log.dirs": "*"})
    assert disks.least_loaded() == 0 and disks.is_cordoned(1)
    disks.close()


def _filled(paths):
    """A node whose topics `a` and `b` are on the first and the second disk."""
    node = Node(",".join(paths), log_initial_task_delay_ms="0")
    node.create("a")
    node.create("b")
    for number in range(30):
        for name in "ab":
            rows = [(b"k", b"%d" % number * 50, node.now_ms(), ())]
            node.logs.get(name, 0).append(batch.build(rows), node.now_ms())
    return node


@pytest.mark.parametrize("back", [True, False], ids=["it-is-back", "it-stays-away"])
def test_clean_stop_marks_the_remaining_directories(tmp_path, caplog, back):
    paths = [str(tmp_path / name) for name in ("one", "two")]
    node = _filled(paths)
    assert [node.logs.dir_index(name, 0) for name in "ab"] == [0, 1]
    node.stop()
    node = Node(",".join(paths))
    node.logs.directories[1].fail(errno.EIO)
    assert node.logs.take_failed() == [("b", 0)]
    node.stop()
    assert os.path.exists(os.path.join(paths[0], checkpoint_files.CLEAN_SHUTDOWN))
    assert not os.path.exists(os.path.join(paths[1], checkpoint_files.CLEAN_SHUTDOWN))
    if not back:
        os.rename(paths[1], paths[1] + ".away")
        open(paths[1], "w").close()
    with caplog.at_level("INFO"):
        node = Node(",".join(paths))
    one = node.logs.get("a", 0)
    # The log that was opened with its checkpoint was not checked.
    assert one.recovery_report() == (0, 0) and one.end_offset == 30
    opened, = [line for line in caplog.records if line.message == "partitions opened"]
    assert opened.clean == 1
    other = node.logs.get("b", 0)
    if back:
        assert other.end_offset == 30 and other.recovery_report()[1] == 1
    else:
        assert other is None
        node.stop()
        # Every stop of a node that has lost a disk leaves the others clean.
        node = Node(",".join(paths))
        assert node.logs.get("a", 0).recovery_report() == (0, 0)
    node.stop()


def test_checkpoint_of_another_clean_stop_is_not_trusted(tmp_path):
    paths = [str(tmp_path / name) for name in ("one", "two")]
    _filled(paths).stop()
    node = Node(",".join(paths))
    rows = [(b"k", b"later", node.now_ms(), ())]
    for _ in range(5):
        node.logs.get("b", 0).append(batch.build(rows), node.now_ms())
    node.logs.get("b", 0).flush()
    node.logs.directories[1].fail(errno.EIO)
    node.logs.take_failed()
    node.stop()
    # The operator saves the remaining files.
    os.rename(os.path.join(paths[1], "b-0"), os.path.join(paths[0], "b-0"))
    node = Node(",".join(paths))
    assert node.logs.get("b", 0).end_offset == 35
    node.stop()


def recorded(monkeypatch):
    """Record the process's fsync and rename calls in Python from now on, in order."""
    found, fsync, rename = [], os.fsync, os.rename

    def record(descriptor):
        found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def renamed(source, goal):
        rename(source, goal)
        found.append("renamed")

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "rename", renamed)
    return found


def test_a_directory_that_was_set_aside_stays_so_after_a_power_cut(tmp_path, monkeypatch):
    disks = Directories([str(tmp_path)], Settings({"log.dir.min.free.bytes": "0"}), None)
    disks.open()
    (tmp_path / "t-0").mkdir()
    calls = recorded(monkeypatch)
    disks.set_aside(0, "t-0")
    assert calls == ["renamed", str(tmp_path)]
    disks.close()


def test_a_branch_has_its_names_on_disk_when_it_is_published(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("source")
    node.logs.get("source", 0).append(batch.build([(b"k", b"v", 0, ())]), node.now_ms())
    node.logs.prepare_branch("b", bytes(range(16)), "source", topic_branches.Cut(), {})
    parts = node.logs._branches.pop(bytes(range(16)))
    calls = recorded(monkeypatch)
    topic_branches.publish("b", parts)
    assert calls == ["renamed", str(tmp_path)]
    node.stop()


@pytest.mark.parametrize("made_before", [True, False])
def test_the_name_of_a_new_directory_is_on_disk_before_it_is_formatted(
        tmp_path, monkeypatch, made_before):
    synced, path = recorded(monkeypatch), tmp_path / "disk" / "pylog" / "data"
    if made_before:
        # Created by a start that was killed before it could flush the names.
        path.mkdir(parents=True)
    node = Node(path)
    formatted = synced.index(str(path / "meta.properties.tmp"))
    assert {str(one) for one in (path.parent, path.parent.parent, tmp_path)} <= set(
        synced[:formatted])
    node.stop()
    synced.clear()
    Node(path).stop()
    assert str(path.parent) not in synced


@pytest.mark.parametrize("code, offline", [(errno.EIO, True), (errno.ENOSPC, False)])
def test_a_directory_that_cannot_be_renamed_is_a_fault_of_the_disk_but_for_a_shortage(
        tmp_path, monkeypatch, code, offline):
    disks = Directories([str(tmp_path)], Settings({"log.dir.min.free.bytes": "0"}), None)
    disks.open()
    (tmp_path / "t-0").mkdir()

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        assert not disks.rename(0, "t-0", "u-0")
    assert disks.online(0) is not offline and (tmp_path / "t-0").exists()
    disks.close()
