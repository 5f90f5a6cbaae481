"""Opening and closing of log directories: real files, and simulated disks."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pylog.log import log_directories
from pylog.log.errors import StartError
from pylog.log.log_directories import IDENTITY, LOCK, Directories, locked, remove_tree


class World:
    """Directories a and b. heard: calls to their disks, in order. bad: paths with an unusable disk.
    fails: errors of the next renames of a directory's entries.
    """

    def __init__(self, monkeypatch, path):
        self.heard, self.bad, self.why = [], set(), None
        self.paths = [str(path / name) for name in "ab"]
        monkeypatch.setattr(log_directories, "LogDir", self._native)
        monkeypatch.setattr(log_directories.restart_checkpoint, "remember",
                            lambda native, memory: self.heard.append(("remember", native.path)))
        monkeypatch.setattr(log_directories.restart_checkpoint, "forget",
                            lambda native: self.heard.append(("forget", native.path)))
        monkeypatch.setattr(log_directories.flush_waits, "syncs_each", lambda native: self.why)
        self.disks = Directories(self.paths, SimpleNamespace(cordoned_log_dirs=()), "pool")

    def _native(self, path, pool, open_files_max):
        assert pool == "pool" and open_files_max > 0
        if path in self.bad:
            raise OSError(errno.EIO, "broken")
        return SimpleNamespace(path=path, offline=False, fail=lambda code: self.failed(path, code))

    def failed(self, path, code):
        self.heard.append(("fail", path, code))
        native = next(native for native in self.disks.natives if native and native.path == path)
        native.offline = code != errno.ENOSPC
        return native.offline


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path)


def is_held(path):
    """Return True if another process cannot take the lock."""
    return subprocess.run([sys.executable, "-c", f"""
import fcntl
with open({path!r}, "r+") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""], stderr=subprocess.DEVNULL).returncode != 0


# Opening.

def test_directories_are_created_locked_and_listed(world):
    os.makedirs(os.path.join(world.paths[1], "t-0"))
    world.disks.open()
    assert world.disks.usable() == list(enumerate(world.paths))
    assert world.disks.listings == [{LOCK}, {LOCK, "t-0"}] and world.disks.loads == [0, 0]
    assert world.heard == [("remember", path) for path in world.paths]
    for path in world.paths:
        with pytest.raises(StartError, match=f"another broker uses {path}: .lock is held"):
            locked(os.path.join(path, LOCK))


def test_closed_directory_can_be_opened_again(world):
    world.disks.open()
    world.heard.clear()
    world.disks.close()
    assert world.heard == [("forget", path) for path in world.paths]
    assert world.disks.natives == []
    for path in world.paths:
        os.close(locked(os.path.join(path, LOCK)))
    world.disks.close()


def test_only_a_directory_without_an_identity_is_formatted(world, monkeypatch):
    made = []
    make = log_directories.checkpoint_files.make_directory
    monkeypatch.setattr(log_directories.checkpoint_files, "make_directory",
                        lambda path: made.append(path) or make(path))
    os.mkdir(world.paths[0])
    open(os.path.join(world.paths[0], IDENTITY), "w").close()
    world.disks.open()
    assert made == world.paths[1:]


def test_unusable_first_directory_stops_the_start(world):
    world.bad = {world.paths[0]}
    with pytest.raises(StartError, match=f"^log directory {world.paths[0]}: broken$"):
        world.disks.open()


def test_unusable_second_directory_is_offline_and_logged_once(world, caplog):
    world.bad = {world.paths[1]}
    world.disks.open()
    assert [line.directory for line in caplog.records] == [world.paths[1]]
    assert world.disks.usable() == [(0, world.paths[0])] and world.disks.natives[1] is None
    assert world.disks.newly_failed() == []
    assert world.disks.fail(1, OSError(errno.EIO, "x")) is False
    world.disks.close()
    assert ("forget", world.paths[0]) in world.heard and len(world.heard) == 2


def test_an_identity_that_cannot_be_read_is_a_fault_of_its_directory(world):
    os.makedirs(os.path.join(world.paths[1], IDENTITY))
    world.disks.open()
    assert [number for number, _ in world.disks.usable()] == [0]


def test_directory_locked_by_another_broker_stops_the_start(world):
    os.mkdir(world.paths[1])
    held = locked(os.path.join(world.paths[1], LOCK))
    with pytest.raises(StartError, match="another broker uses"):
        world.disks.open()
    os.close(held)


@pytest.mark.parametrize("why", [None, "the kernel is old"])
def test_disk_flushed_log_by_log_is_reported(world, caplog, why):
    world.why = why
    with caplog.at_level("INFO"):
        world.disks.open()
    assert [line.reason for line in caplog.records] == ([why] * 2 if why else [])


# Locks.

def test_directory_lock_excludes_pylog_and_kafka_brokers(tmp_path):
    path = str(tmp_path / LOCK)
    held = locked(path)
    assert stat.S_IMODE(os.stat(path).st_mode) & ~0o644 == 0
    assert is_held(path) and not os.get_inheritable(held)
    with open(path, "r+") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)
    assert not is_held(path)


@pytest.mark.parametrize(("error", "raised"), [
    (BlockingIOError(errno.EAGAIN, "held"), StartError),
    (OSError(errno.ENOLCK, "none"), OSError)])
@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_failed_lock_leaves_no_descriptor_open(
        tmp_path, monkeypatch, call, error, raised):
    asked, closed, close = [], [], os.close

    def refused(descriptor, how):
        asked.append((descriptor, how))
        raise error

    monkeypatch.setattr(fcntl, call, refused)
    monkeypatch.setattr(os, "close", lambda descriptor: closed.append(descriptor) or close(
        descriptor))
    with pytest.raises(raised) as found:
        locked(str(tmp_path / LOCK))
    assert isinstance(found.value, raised)
    assert (raised is StartError) == ("another broker" in str(found.value))
    (descriptor, how), = asked
    assert how == fcntl.LOCK_EX | fcntl.LOCK_NB and descriptor in closed


# Names.

def test_a_directory_is_renamed_on_disk(world, monkeypatch):
    world.disks.open()
    synced = []
    monkeypatch.setattr(log_directories.checkpoint_files, "sync_directory", synced.append)
    os.mkdir(os.path.join(world.paths[1], "t-0"))
    assert world.disks.rename(1, "t-0", "t-1")
    assert synced == [world.paths[1]] and os.path.isdir(os.path.join(world.paths[1], "t-1"))
    assert world.disks.rename_only_copy(1, "t-1", "t-2")


@pytest.mark.parametrize(("code", "ends"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_shortage_while_renaming_the_only_copy_stops_the_start(
        world, monkeypatch, code, ends):
    def rename(source, goal):
        raise OSError(code, os.strerror(code))

    world.disks.open()
    monkeypatch.setattr(log_directories.os, "rename", rename)
    if ends:
        with pytest.raises(StartError, match="b/t-0 cannot be renamed to t-1: .*; make room"):
            world.disks.rename_only_copy(1, "t-0", "t-1")
    else:
        assert world.disks.rename_only_copy(1, "t-0", "t-1") is False
    assert world.heard[-1] == ("fail", world.paths[1], code)
    world.heard.clear()
    if ends:
        assert world.disks.rename(1, "t-0", "t-1") is False and len(world.heard) == 1


@pytest.mark.parametrize("there", [True, False])
def test_set_aside_directories_are_logged_but_failed_ones_are_not(world, caplog, there):
    world.disks.open()
    if there:
        os.mkdir(os.path.join(world.paths[0], "a-b-7"))
    world.disks.set_aside(0, "a-b-7")
    names = [name for name in os.listdir(world.paths[0]) if name != LOCK]
    assert [name.startswith("a-b-7.") and name.endswith("-stray")
            for name in names] == [True] * there
    assert ("set aside" in caplog.text) == there


def test_removed_directory_may_be_missing_already(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    remove_tree(str(tmp_path / "a"))
    remove_tree(str(tmp_path / "a"))
    assert os.listdir(tmp_path) == []


# Space.

def test_regained_space_is_logged_once(world, caplog):
    world.disks.open()
    world.disks._settings = {"log.dir.min.free.bytes": 10}
    for native in world.disks.natives:
        native.short_of_space, native.free = False, 50

        def look(reserve=None, native=native):
            if reserve is not None:
                native.short_of_space = native.free < reserve
            return native.free, 1000

        native.check_free_space = look
        native.stats = lambda: {"shortages": 0, "short_error": 0}
    first = world.disks.natives[0]
    told = []
    for free in (50, 9, 9, 10, 10):
        first.free = free
        caplog.clear()
        world.disks.check_free_space()
        told.append([(line.levelname, line.directory) for line in caplog.records])
    assert told == [[], [("ERROR", world.paths[0])], [], [("WARNING", world.paths[0])], []]
