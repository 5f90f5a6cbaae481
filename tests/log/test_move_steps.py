"""Moves without logs: their pace, cancellation, and names."""

import os
import re
import threading
from types import SimpleNamespace

import pytest

from pylog._native.log.log import LogError
from pylog.log import replica_moves
from pylog.log.replica_moves import FUTURE, STEP_BYTES, Move, Moves, directory_name, furthest
from pylog.protocol.errors import ErrorCode

MIB = 1 << 20


def failure():
    return LogError(5, ErrorCode.KAFKA_STORAGE_ERROR, "planted")


class Log:
    """The part of a Log that moves use."""

    def __init__(self, end_offset=0, leads=True, offline=False):
        self.end_offset, self.size_bytes, self.start_offset = end_offset, 0, 0
        self.high_watermark = 0
        self.is_leader, self.leader_epoch, self.in_sync_count = leads, 3, 2
        self.offline, self.log_dir = offline, SimpleNamespace(path="/d")
        self.steps, self.refuses = [], set()

    def _step(self, name, *given):
        self.steps.append((name, *given))
        if name in self.refuses:
            raise failure()

    def flush(self):
        self._step("flush")

    def delete(self, now_ms):
        self._step("delete", now_ms)

    def become_leader(self, *role):
        self._step("become_leader", *role)

    def become_follower(self, epoch, *, readable):
        assert readable
        self._step("become_follower", epoch)

    def advance_high_watermark(self, offset):
        self.high_watermark = offset

    def move_start(self, offset, now_ms):
        assert offset <= self.high_watermark
        self._step("move_start", offset, now_ms)


class World:
    """Moves on a clock that advances while waiting. sizes: bytes of each step of a copy."""

    def __init__(self, monkeypatch, rate=None, sizes=(), stop_after=50):
        self.now_s, self.rate, self.waits, self.stopped = 0.0, rate, [], False
        self.stop_after, self.sizes, self.copied = stop_after, list(sizes), []
        self.moves = Moves(lambda: 77, lambda: self.rate)
        self.moves._stopping = self
        self.moves._thread = SimpleNamespace(is_alive=lambda: True, join=lambda: None)
        monkeypatch.setattr(replica_moves.replica_move, "copy", self.copy)

    def copy(self, source, target, count, now_ms):
        assert (count, now_ms) == (STEP_BYTES, 77)
        size = self.sizes.pop(0)
        if isinstance(size, Exception):
            raise size
        self.copied.append((round(self.now_s, 6), size))
        target.size_bytes += size
        return size > 0, 1

    def is_set(self):
        return self.stopped or not self.sizes

    def set(self):
        self.stopped = True

    def wait(self, seconds):
        self.waits.append(round(seconds, 6))
        self.now_s += seconds
        self.stopped = self.stopped or len(self.waits) == self.stop_after

    def begin(self, **of_log):
        move = Move("t", 0, 1, Log(9, **of_log), Log())
        self.moves.begin(move)
        return move


# Pace.

def test_copied_bytes_are_throttled_in_half_second_waits(monkeypatch):
    world = World(monkeypatch, rate=10 * MIB, sizes=[8 * MIB, 8 * MIB, 1])
    world.begin()
    world.moves._run()
    assert world.copied == [(0, 8 * MIB), (0.8, 8 * MIB), (1.6, 1)]
    assert world.waits[:4] == [0.5, 0.3, 0.5, 0.3]


def test_changed_rate_applies_to_the_remaining_wait(monkeypatch):
    world = World(monkeypatch, rate=8 * MIB, sizes=[8 * MIB, 1])
    world.begin()
    wait = world.wait

    def faster(seconds):
        wait(seconds)
        world.rate = 40 * MIB

    monkeypatch.setattr(world, "wait", faster)
    world.moves._run()
    assert world.copied[1] == (0.6, 1)


def test_move_rate_of_zero_pauses_and_is_polled_twice_a_second(monkeypatch):
    world = World(monkeypatch, rate=0, sizes=[8 * MIB], stop_after=3)
    world.begin()
    world.moves._run()
    assert world.waits == [0.5] * 3 and not world.copied


def test_unthrottled_move_copies_whole_steps(monkeypatch):
    world = World(monkeypatch, sizes=[STEP_BYTES, STEP_BYTES, STEP_BYTES - 1, STEP_BYTES])
    world.begin()
    world.moves._run()
    assert [at for at, _ in world.copied] == [0, 0, 0, 0.02]
    assert world.waits == [0.02]


def test_moves_of_several_partitions_share_the_rate(monkeypatch):
    world = World(monkeypatch, rate=16 * MIB, sizes=[8 * MIB, 8 * MIB, 1, 1])
    world.moves.begin(Move("t", 0, 1, Log(), Log()))
    world.moves.begin(Move("t", 1, 1, Log(), Log()))
    world.moves._run()
    assert [at for at, _ in world.copied] == [0, 0, 1.0, 1.0]


def test_the_thread_ends_with_the_last_move(monkeypatch):
    world = World(monkeypatch, sizes=[5])
    world.moves._run()
    assert not world.copied and not world.waits


def test_moves_use_one_daemon_thread(monkeypatch):
    began, going = [], threading.Event()
    one = Moves(lambda: 77)
    monkeypatch.setattr(one, "_run", lambda: (began.append(threading.current_thread()),
                                              going.wait(30)))
    for number in range(2):
        one.begin(Move("t", number, 1, Log(), Log()))
    first = one._thread
    assert first.daemon and first.is_alive()
    going.set()
    first.join()
    one.begin(Move("t", 2, 1, Log(), Log()))
    one._thread.join()
    assert began == [first, one._thread] and one._thread is not first and len(one.all()) == 3


def test_move_started_while_the_thread_ends_gets_a_thread(monkeypatch):
    class Late(dict):
        """A new move may start after a caller has seen an empty list."""

        def __len__(self):
            if super().__len__() == 0 and not began:
                began.append(threading.Thread(
                    target=one.begin, args=(Move("t", 0, 1, Log(), Log()),)))
                began[0].start()
                began[0].join(0.2)
                return 0
            return super().__len__()

    began, stepped = [], threading.Event()
    one = Moves(lambda: 77)
    one._moves = Late()
    monkeypatch.setattr(one, "_step", lambda move: stepped.set() or 0)
    one._thread = threading.Thread(target=one._run, daemon=True)
    one._thread.start()
    assert stepped.wait(10)
    one.stop()


# Progress and end of a move.

def test_a_copy_is_ready_once_it_has_all_and_that_is_on_disk(monkeypatch):
    world = World(monkeypatch, sizes=[7, 0, 0, 3])
    move = world.begin()
    for expected in (False, True, True, True):
        assert world.moves._step(move) == [7, 0, 0, 3][4 - len(world.sizes) - 1]
        assert move.ready == expected
    assert move.target.steps == [("flush",)] and move.damaged_bytes == 4


@pytest.mark.parametrize("where", ["copy", "flush", "delete too"])
def test_failed_copy_is_removed_and_the_partition_does_not_move(
        monkeypatch, caplog, where):
    world = World(monkeypatch, sizes=[0 if where == "flush" else failure()])
    move = world.begin()
    move.target.refuses = {"flush", "delete"} if where == "delete too" else {where}
    assert world.moves._step(move) == 0
    assert world.moves.all() == [] and move.target.steps[-1] == ("delete", 77)
    assert not move.ready and "a replica cannot be moved" in caplog.text
    assert ("could not be removed" in caplog.text) == (where == "delete too")


def test_cancelled_move_deletes_its_copy_and_a_missing_one_has_no_effect(monkeypatch):
    world = World(monkeypatch)
    move = world.begin()
    world.moves.cancel("t", 1)
    world.moves.cancel("u", 0)
    assert world.moves.find("t", 0) is move and world.moves.find("t", 1) is None
    world.moves.cancel("t", 0)
    assert world.moves.find("t", 0) is None and move.target.steps == [("delete", 77)]


def test_stop_removes_incomplete_copies(monkeypatch):
    world = World(monkeypatch)
    move = world.begin()
    world.moves.stop()
    assert world.stopped and move.target.steps == [("delete", 77)] and not world.moves.all()


def test_stop_waits_for_the_move_thread(monkeypatch):
    world = World(monkeypatch)
    move, joined = world.begin(), []
    world.moves._thread.join = lambda: joined.append((world.stopped, list(move.target.steps)))
    world.moves.stop()
    assert joined == [(True, [])] and move.target.steps
    Moves(lambda: 77).stop()


@pytest.mark.parametrize("finished", [True, False])
def test_only_ready_moves_are_finished_and_returned(monkeypatch, finished):
    world = World(monkeypatch)
    move, other = world.begin(), Move("t", 1, 1, Log(), Log())
    world.moves.begin(other)
    move.ready = True
    assert world.moves.finish_ready(lambda _: finished) == [move] * finished
    assert world.moves.all() == [other]
    assert world.moves.finish_ready(lambda _: True) == []


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(("has_left", "offline", "again"), [
    (False, "", True), (True, "", False), (False, "target", False), (True, "target", False),
    (False, "source", False)])
def test_unfinished_move_is_retried_while_the_source_keeps_its_name(
        monkeypatch, leads, has_left, offline, again):
    world = World(monkeypatch)
    move, other = world.begin(leads=leads), Move("t", 1, 1, Log(), Log())
    move.has_left = has_left
    world.moves.begin(other)
    move.target.offline, move.source.offline = offline == "target", offline == "source"
    move.ready = other.ready = True

    def finish(one):
        if one is move:
            raise failure()
        return True

    assert world.moves.finish_ready(finish) == [other]
    assert world.moves.all() == [move] * again


@pytest.mark.parametrize(("source", "target", "lag"), [(9, 0, 9), (9, 9, 0), (9, 8, 1), (8, 9, 0)])
def test_lag_is_the_missing_part_of_the_copy_and_never_negative(source, target, lag):
    assert Move("t", 0, 1, Log(source), Log(target)).lag == lag


# Switch to the copy.

@pytest.fixture
def hand_over(monkeypatch):
    """Return a move with a complete copy, and the list of its renames."""
    move, renamed = Move("t", 4, 1, Log(9), Log(9)), []
    monkeypatch.setattr(replica_moves.replica_move, "hand_over", lambda *_: 6)
    monkeypatch.setattr(replica_moves.replica_move, "rename",
                        lambda log, name: renamed.append((log, name)))
    return move, renamed


def test_copy_is_renamed_after_the_source_and_takes_leadership(hand_over):
    move, renamed = hand_over
    replica_moves.finish(move, 77)
    assert [log for log, _ in renamed] == [move.source, move.target]
    assert re.fullmatch(r"t-4\.[0-9a-f]{32}-delete", renamed[0][1]) and renamed[1][1] == "t-4"
    assert move.target.steps == [("become_leader", 3, 2)]
    assert move.source.steps == [("flush",)] and move.damaged_bytes == 6


def test_copy_of_a_follower_keeps_following_in_any_fetcher_state(hand_over):
    move, renamed = hand_over
    move.source.is_leader, move.source.end_offset = False, 12
    replica_moves.finish(move, 77)
    assert len(renamed) == 2 and move.has_left
    assert move.target.steps == [("become_follower", 3)]


def test_a_log_that_follows_and_cannot_leave_its_name_follows_on(monkeypatch, hand_over):
    move, renamed = hand_over
    move.source.is_leader = False

    def rename(log, name):
        renamed.append(name)
        if len(renamed) == 1:
            raise failure()

    monkeypatch.setattr(replica_moves.replica_move, "rename", rename)
    with pytest.raises(LogError):
        replica_moves.finish(move, 77)
    assert not move.has_left and not move.target.steps
    assert move.source.steps == [("flush",), ("become_follower", 3)]


@pytest.mark.parametrize(("start", "steps"), [
    (5, [("move_start", 5, 77)]), (4, []), (3, [])])
def test_records_deleted_during_a_move_stay_deleted(hand_over, start, steps):
    move, _ = hand_over
    move.source.start_offset, move.target.start_offset = start, 4
    move.source.high_watermark = 8
    replica_moves.finish(move, 77)
    assert move.target.steps[1:] == steps and move.target.high_watermark == 8


def test_a_flush_that_fails_on_the_old_disk_does_not_hold_the_move_up(hand_over):
    move, renamed = hand_over
    move.source.refuses = {"flush"}
    replica_moves.finish(move, 77)
    assert len(renamed) == 2


@pytest.mark.parametrize("also_back", [False, True])
def test_a_source_that_cannot_leave_its_name_leads_on(monkeypatch, hand_over, also_back):
    move, _ = hand_over
    tried = []

    def rename(log, name):
        tried.append((log, name))
        if len(tried) == 1 or also_back:
            raise failure()

    monkeypatch.setattr(replica_moves.replica_move, "rename", rename)
    with pytest.raises(LogError):
        replica_moves.finish(move, 77)
    assert [log for log, _ in tried] == [move.source] * 2 and tried[1][1] == "t-4"
    assert move.source.steps[-1] == ("become_leader", 3, 2) and not move.target.steps


@pytest.mark.parametrize("source_too", [False, True])
def test_failed_rename_leaves_one_serving_directory(
        monkeypatch, caplog, hand_over, source_too):
    move, _ = hand_over
    tried = []

    def rename(log, name):
        tried.append((log, name))
        if len(tried) == 2 or (len(tried) == 3 and source_too):
            raise failure()

    monkeypatch.setattr(replica_moves.replica_move, "rename", rename)
    if source_too:
        replica_moves.finish(move, 77)
        assert move.has_left and move.target.steps == [("become_leader", 3, 2)]
        assert "keeps the directory of its copy" in caplog.text
    else:
        with pytest.raises(LogError):
            replica_moves.finish(move, 77)
        assert not move.has_left and move.target.steps == []
        assert move.source.steps[-1] == ("become_leader", 3, 2)
    assert tried[1:] == [(move.target, "t-4"), (move.source, "t-4")]


def test_copy_on_a_failed_disk_does_not_keep_the_partitions_name(monkeypatch, hand_over):
    move, _ = hand_over
    names = {}

    def rename(log, name):
        names[log] = name
        if log is move.target:
            # The rename took effect, but its directory could not be synced.
            log.offline = True
            raise failure()

    monkeypatch.setattr(replica_moves.replica_move, "rename", rename)
    with pytest.raises(LogError):
        replica_moves.finish(move, 77)
    assert names[move.source] == "t-4" and FUTURE.fullmatch(names[move.target])[1] == "t-4"


# Names and folders.

def test_most_complete_copy_is_chosen(tmp_path):
    def folder(name, **sizes):
        (tmp_path / name).mkdir()
        for base, size in sizes.items():
            (tmp_path / name / f"{int(base[1:]):020d}.log").write_bytes(bytes(size))
        return str(tmp_path / name)

    empty = folder("empty")
    short, long = folder("short", _0=9, _5=3), folder("long", _0=1, _5=4)
    (tmp_path / "empty/99999999999999999999.logs").write_bytes(bytes(99))
    assert furthest([empty, short]) == furthest([short, empty]) == short
    assert furthest([short, long, empty]) == long
    assert furthest([long, folder("later", _6=0)]) == str(tmp_path / "later")
    assert furthest([empty]) == empty


@pytest.mark.parametrize(("length", "left"), [(1, 1), (213, 213), (214, 213), (249, 213)])
def test_a_directorys_name_fits_into_a_file_system_and_loses_the_topics_end(length, left):
    """255 bytes: "-0.", 32 digits and "-delete" take 42."""
    name = directory_name("x" * length, 0, "delete")
    assert re.fullmatch(rf"x{{{left}}}-0\.[0-9a-f]{{32}}-delete", name) and len(name) <= 255


def test_each_moved_directory_has_a_unique_name_that_kafka_accepts():
    one, other = (directory_name("a-b.c", 7, "future") for _ in range(2))
    assert one != other and FUTURE.fullmatch(one)[1] == "a-b.c-7"
    assert FUTURE.fullmatch(directory_name("t", 0, "delete")) is None
    assert os.path.basename(one) == one
