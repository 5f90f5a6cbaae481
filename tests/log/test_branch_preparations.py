"""Creation of a branch: its end offset, the order of steps, and the state after a failure in
between.
"""

import os
from types import SimpleNamespace

import pytest

from pylog.log import topic_branches
from pylog.log.topic_branches import ATTEMPTS, NEVER, Cut
from tests.log.test_branch_steps import ID, STRAY, TIME, Source, failure

UNCUT = Cut()
SECOND = STRAY.replace("t-0", "t-1")


class Target:
    """The log of a branch, before its end is cut."""

    def __init__(self, world, known):
        self.world, self.known, self.start_offset, self.end_offset = world, known, 0, 25
        self.recovery_point, self.high_watermark = 25, known["high_watermark"]

    def advance_high_watermark(self, offset):
        self.high_watermark = offset

    def move_start(self, offset, now_ms):
        assert now_ms == TIME
        self.start_offset = offset
        self.world.steps.append("move_start")

    def settle(self, now_ms):
        assert now_ms == TIME
        self.world.step("settle")

    def release(self):
        self.world.steps.append("release")


class World:
    """steps: executed steps, in order. fails: the step that fails."""

    def __init__(self, root, monkeypatch):
        self.root, self.steps, self.fails, self.linked, self.made = root, [], None, [True], []
        self.source = Source(root)
        self.source.flush = lambda: self.step("flush")
        for name, stand_in in (
                ("Log", SimpleNamespace(open=self.open)), ("_link", self.link),
                ("_end_before", lambda target, source, end, now_ms: self.step(f"end {end}")),
                ("_abort_open", lambda target, epoch, now_ms: self.step(f"abort {epoch}")),
                ("sync_directory", lambda path: self.step(f"sync {os.path.basename(path)}"))):
            monkeypatch.setattr(topic_branches, name, stand_in)
        monkeypatch.setattr(topic_branches.replica_move, "seal", lambda one, now_ms: self.step(
            "seal source" if one is self.source else "seal"))

    def step(self, name):
        self.steps.append(name)
        if name == self.fails:
            raise failure()

    def link(self, source, folder, path, end):
        assert folder == str(source.folder) and os.listdir(path) == ["branch"]
        self.steps.append(f"link {end}")
        open(os.path.join(path, "linked"), "x").close()
        return self.linked.pop(0) if len(self.linked) > 1 else self.linked[0]

    def open(self, disk, name, index, topic_id, config, **known):
        assert (name, topic_id, config) == ("t", ID, "config")
        self.step(f"open {index}")
        self.made.append(Target(self, known))
        return self.made[-1]

    def prepare(self, cut=UNCUT, sources=1):
        return topic_branches.prepare([(self.source, 3)] * sources, "t", ID, cut, "config", TIME)

    def left(self):
        return sorted(name for name in os.listdir(self.root) if name != "s-0")


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def test_branch_consists_of_sealed_flushed_segments_and_is_flushed_before_publication(world):
    made, = world.prepare()
    assert world.steps == [
        "seal source", "flush", "link 20", "open 0", "end 20", "abort 7", "seal", "settle",
        "release", f"sync {STRAY}", f"sync {world.root.name}"]
    assert (made.dir_index, made.path) == (3, str(world.root / STRAY))
    assert made.checkpoint == (25, 0, 25, -1, -1, b"")
    assert world.made[0].known == {
        "now_ms": TIME, "recovery_point": 20, "log_start_offset": 0, "high_watermark": 20,
        "directory": STRAY}
    assert world.left() == [STRAY]


@pytest.mark.parametrize(("cut", "start", "end"), [
    (UNCUT, 0, 20), (Cut(offset=0), 0, 0), (Cut(offset=7), 0, 7), (Cut(offset=20), 0, 20),
    (Cut(offset=21), 0, 20), (Cut(offset=7), 8, 8), (Cut(time_ms=5), 0, 12),
    (Cut(time_ms=6), 0, 20), (Cut(time_ms=0), 0, 1)])
def test_a_branch_ends_at_the_cut_but_within_its_source(world, cut, start, end):
    world.source.start_offset = start
    world.source.offset_for_time = {0: (1, 0, 0), 5: (12, 5, 0)}.get
    world.prepare(cut)
    assert f"link {end}" in world.steps and f"end {end}" in world.steps
    assert world.made[0].known["log_start_offset"] == start


def test_a_time_after_all_records_cuts_nothing():
    source = SimpleNamespace(offset_for_time=lambda time_ms: None)
    assert topic_branches._offset_of(source, Cut(time_ms=5)) == NEVER == 2**63 - 1
    assert topic_branches._offset_of(source, Cut(offset=0, time_ms=None)) == 0


@pytest.mark.parametrize(("start", "moves"), [(0, 0), (1, 1)])
def test_a_branch_has_the_start_of_its_source(world, start, moves):
    world.source.start_offset = start
    world.prepare()
    assert world.steps.count("move_start") == moves and world.made[0].start_offset == start


def test_changed_segments_are_linked_again(world):
    world.linked = [False, False, True]
    world.prepare()
    assert world.steps.count("link 20") == 3 and world.steps.count("open 0") == 1


def test_segments_that_change_all_the_time_make_no_branch(world):
    world.linked = [False]
    with pytest.raises(OSError, match="the segments of s-0 changed during every attempt"):
        world.prepare()
    assert world.steps.count("link 20") == ATTEMPTS == 16 and world.left() == []


@pytest.mark.parametrize("step", ["end 20", "abort 7", "seal", "settle", f"sync {STRAY}"])
def test_a_branch_that_fails_is_released_and_removed(world, step):
    world.fails = step
    with pytest.raises(Exception, match="planted"):
        world.prepare()
    assert world.steps.count("release") == 1 and world.left() == []


@pytest.mark.parametrize("step", ["open 1", f"sync {SECOND}", "sync the root"])
def test_failed_partition_cancels_the_whole_branch(world, step):
    world.fails = f"sync {world.root.name}" if step == "sync the root" else step
    with pytest.raises(Exception, match="planted"):
        world.prepare(sources=2)
    assert world.left() == []


def test_closed_source_cancels_the_whole_branch(world):
    with pytest.raises(OSError, match="partition 1 of the source is not open"):
        topic_branches.prepare([(world.source, 3), (None, 0)], "t", ID, UNCUT, "config", TIME)
    assert world.left() == [] and world.steps.count("settle") == 1


def test_each_directory_of_a_branch_is_synced_once(world):
    parts = world.prepare(sources=2)
    assert [os.path.basename(part.path) for part in parts] == [STRAY, SECOND]
    assert world.steps.count(f"sync {world.root.name}") == 1
    assert world.steps[-1] == f"sync {world.root.name}"
