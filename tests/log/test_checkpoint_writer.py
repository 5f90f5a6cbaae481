"""A checkpoint never exceeds the recoverable log, also if the process is killed during a
truncation.
"""

import os
from collections import namedtuple
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from pylog._native.log import log
from pylog.log.checkpoint_files import RECOVERY_POINT
from pylog.log.checkpoint_writer import Checkpointer
from tests.native.log.test_log import NOW, TOPIC_ID, make, opened

Cut = namedtuple("Cut", ("truncate_to", "restart_at"))


class Store:
    """The saved checkpoints, and the log's end at that time."""

    def __init__(self, partition_log):
        self.log = partition_log
        self.saved = []

    def save(self, _image, checkpoints, _gone=()):
        self.saved += [(key, entry, self.log.end_offset) for key, entry in checkpoints]


@pytest.fixture
def follower(tmp_path):
    one = opened(log.LogDir(tmp_path, 2))
    for _ in range(10):
        one.append(make(1), NOW)
    one.flush()
    one.become_follower(4)
    return one


def checkpointer_of(partition_log):
    made = Checkpointer(None, None, list)
    made.store = Store(partition_log)
    return made


@pytest.mark.parametrize("cut, point, ends", [
    (Cut(3, None), 3, (0, 3)), (Cut(10, None), 10, (0, 10)), (Cut(None, 70), 0, (70, 70)),
])
def test_the_promise_is_lowered_before_the_log_is_cut(follower, cut, point, ends):
    checkpointer = checkpointer_of(follower)
    checkpointer.cut(TOPIC_ID, 0, follower, cut, 4)
    [(key, entry, end_then)] = checkpointer.store.saved
    assert key == (TOPIC_ID, 0)
    assert (entry.recovery_point, end_then) == (point, 10)
    assert (follower.start_offset, follower.end_offset) == ends


def test_follower_log_is_not_trimmed(follower):
    with pytest.raises(log.NotLeader):
        checkpointer_of(follower).cut(TOPIC_ID, 0, follower, Cut(3, None), 3)
    assert follower.end_offset == 10


def test_undefined_truncation_is_ignored(follower):
    checkpointer = checkpointer_of(follower)
    checkpointer.cut(TOPIC_ID, 0, follower, Cut(None, None), 4)
    assert checkpointer.store.saved == [] and follower.end_offset == 10


class World:
    """A checkpointer of the logs in `rows`, whose only directory is at `path`."""

    def __init__(self, follower, path):
        self.path, self.rows, self.failures = str(path), [], []
        self.store = Store(follower)
        self.checkpointer = Checkpointer(
            self, SimpleNamespace(lock=nullcontext(), unread=lambda number: []), lambda: self.rows)
        self.natives = [follower.log_dir]

    # The interface of Directories.

    def usable(self):
        return [(0, self.path)]

    def fail(self, number, error):
        """Like a disk with a temporary shortage, which is not a failure."""
        self.failures.append(error.strerror)
        return False

    def write(self):
        """Return (number of checkpoints in the store, True if Kafka's own files were written)."""
        file = os.path.join(self.path, RECOVERY_POINT)
        if os.path.exists(file):
            os.unlink(file)
        self.store.saved.clear()
        self.checkpointer.write(self.store)
        return len(self.store.saved), os.path.exists(file)


def test_checkpoint_is_written_only_after_changes(follower, tmp_path):
    world = World(follower, tmp_path)
    assert world.write() == (0, False)
    world.rows.append((0, "t", TOPIC_ID, 0, follower))
    assert [world.write(), world.write()] == [(1, True), (0, False)]
    world.rows.clear()
    world.checkpointer.forget((TOPIC_ID, 0))
    assert [world.write(), world.write()] == [(0, True), (0, False)]
    assert world.checkpointer.gone == []


def test_files_that_found_no_room_are_written_next_time(follower, tmp_path):
    world = World(follower, tmp_path / "missing")
    world.rows.append((0, "t", TOPIC_ID, 0, follower))
    assert [world.write(), world.write()] == [(1, False), (0, False)]
    assert world.failures == ["No such file or directory"] * 2
    os.mkdir(world.path)
    assert [world.write(), world.write()] == [(0, True), (0, False)]
