"""Snapshot updates: which changes are written, their order, and what remains for the next time;
log, machine and snapshot are simulated.
"""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from pylog._native.log.log import LogError
from pylog.coordinator.runtime import snapshot_writer
from pylog.coordinator.runtime.snapshot_writer import Saver
from pylog.metadata.image.state_store import StoreError
from pylog.protocol.errors import ErrorCode


class World:
    """A shard and its snapshot; calls are recorded in `heard`. steps: the rows of each step of the
    snapshot. fails: name of a call -> its exception.
    """

    def __init__(self, steps=((1, 2), (3,))):
        self.heard, self.fails, self.steps = [], {}, [list(rows) for rows in steps]
        self.meanwhile = lambda: None
        self.log = SimpleNamespace(
            topic="t", flush=self._does("flush"), last_stable_offset=8, high_watermark=9,
            end_offset=9, epoch_of=lambda offset: 100 + offset)
        self.journal = SimpleNamespace(
            log=self.log, failed=False, written=5, append_now=self._does("append_now"))
        self.state_machine = SimpleNamespace(records=[], changed={"a", "b"},
                                             saved=self._does("saved"))
        self.shard = SimpleNamespace(
            index=3, state_machine=self.state_machine, journal=self.journal, ready=True, halfway=0,
            saving=asyncio.Lock(), snapshot=SimpleNamespace(
                rows=self._rows, write=self._does("write")))

    def _does(self, name):
        def call(*given):
            self.heard.append((name, *given))
            if name in self.fails:
                raise self.fails[name]
        return call

    def _rows(self, state_machine, changed):
        assert state_machine is self.state_machine and state_machine.changed == set()
        for rows in self.steps:
            yield rows
            self.meanwhile()

    def save(self):
        async def work():
            one = Saver()
            await one.save(self.shard)
            await one.close()
        asyncio.run(work())
        return [call for call in self.heard if call[0] != "append_now"]


@pytest.fixture
def world():
    return World()


def test_rows_are_written_after_the_log_is_on_disk_and_the_applied_offset_with_the_last(world):
    assert world.save() == [("flush",), ("write", [1, 2, 3], (7, 107)), ("saved", {"a", "b"})]
    assert world.state_machine.changed == set() and world.journal.written == 0


def test_many_rows_are_written_in_parts_after_appending_new_records(
        world, monkeypatch):
    monkeypatch.setattr(snapshot_writer, "SAVE_ROWS", 2)
    world.save()
    assert world.heard == [
        ("append_now",), ("flush",), ("write", [1, 2], None), ("append_now",), ("flush",),
        ("write", [3], (7, 107)), ("saved", {"a", "b"})]


def test_offset_range_is_not_written_until_it_is_complete(world, monkeypatch):
    monkeypatch.setattr(snapshot_writer, "SAVE_ROWS", 3)
    assert [call for call in world.save() if call[0] == "write"] == [
        ("write", [1, 2, 3], None), ("write", [], (7, 107))]


@pytest.mark.parametrize("what", ["failed", "not ready", "halfway", "unchanged"])
def test_incomplete_or_unchanged_state_is_not_saved(world, what):
    world.journal.failed, world.shard.ready = what == "failed", what != "not ready"
    world.shard.halfway = int(what == "halfway")
    if what == "unchanged":
        world.state_machine.changed = set()
    before = set(world.state_machine.changed)
    assert world.save() == [] and world.heard == [("append_now",)]
    assert world.state_machine.changed == before and world.journal.written == 5


@pytest.mark.parametrize(("stable", "visible", "saved"), [
    (9, 9, True), (9, 8, False), (0, 9, False), (1, 9, True)])
def test_snapshot_waits_until_all_replicas_have_the_log_and_it_is_stable(
        world, stable, visible, saved):
    world.log.last_stable_offset, world.log.high_watermark = stable, visible
    found = world.save()
    assert bool(found) == saved
    assert world.state_machine.changed == (set() if saved else {"a", "b"})
    if saved:
        assert found[1][2] == (stable - 1, 99 + stable)


def test_records_rejected_by_the_log_are_in_no_later_offset_range(world, monkeypatch):
    monkeypatch.setattr(snapshot_writer, "SAVE_ROWS", 2)

    def append_now():
        # Fail the second call: the first rows are written.
        world.journal.failed = len(world.heard) > 0

    world.journal.append_now = append_now
    assert world.save() == [("flush",), ("write", [1, 2], None)]


def test_rows_of_records_that_a_replica_has_not_wait_for_it(world, monkeypatch):
    monkeypatch.setattr(snapshot_writer, "SAVE_ROWS", 2)
    monkeypatch.setattr(snapshot_writer, "CHECK_INTERVAL_S", 0)
    looks = []

    class Log(SimpleNamespace):
        """One more record is written with the first rows, and replicated at the third check."""

        @property
        def high_watermark(self):
            looks.append(self.end_offset)
            return 10 if looks.count(10) >= 3 else 9

    world.shard.journal.log = world.log = Log(**{
        name: value for name, value in vars(world.log).items() if name != "high_watermark"})

    def append_now():
        world.log.end_offset = 9 + min(1, len(world.heard))

    world.journal.append_now = append_now
    assert world.save() == [("flush",), ("write", [1, 2], None), ("flush",),
                            ("write", [3], (7, 107)), ("saved", {"a", "b"})]
    assert looks.count(10) == 3


@pytest.mark.parametrize("left", ["a replica that is away", "a term that ends"])
def test_rows_of_unreplicated_records_are_written_later(
        world, monkeypatch, left):
    monkeypatch.setattr(snapshot_writer, "SAVE_ROWS", 2)
    monkeypatch.setattr(snapshot_writer, "CHECK_INTERVAL_S", 0)

    def append_now():
        if world.heard:
            world.log.end_offset = 10
            world.journal.failed = left == "a term that ends"

    world.journal.append_now = append_now
    assert world.save() == [("flush",), ("write", [1, 2], None)]
    assert world.state_machine.changed == {"a", "b"}


@pytest.mark.parametrize(("name", "error", "traced"), [
    ("write", StoreError("planted"), False), ("saved", ValueError("ours"), True),
    ("flush", LogError(5, ErrorCode.KAFKA_STORAGE_ERROR, "planted"), False)])
def test_failed_save_is_logged_and_repeated_next_time(
        world, caplog, name, error, traced):
    world.fails = {name: error}
    world.state_machine.changed = {"a"}
    world.save()
    assert world.state_machine.changed == {"a"}
    assert [line.message for line in caplog.records] == ["state.lmdb is behind"] * traced + [
        "state.lmdb could not be brought up to date"]
    assert (caplog.records[-1].partition, caplog.records[-1].reason) == (3, str(error))
    assert not world.shard.saving.locked()


def test_changes_during_a_failed_save_are_kept(world):
    world.fails = {"write": StoreError("planted")}
    world.meanwhile = lambda: world.state_machine.changed.add("c")
    world.save()
    assert world.state_machine.changed == {"a", "b", "c"}


def test_without_a_snapshot_nothing_is_saved(world):
    world.shard.snapshot = None
    assert world.save() == [] and world.heard == []


def test_cancelled_save_waits_for_its_current_write(world):
    begun, gate = threading.Event(), threading.Event()
    write = world.shard.snapshot.write

    def slow(rows, applied):
        begun.set()
        assert gate.wait(30)
        write(rows, applied)

    world.shard.snapshot.write = slow

    async def work():
        one = Saver()
        saving = asyncio.ensure_future(one.save(world.shard))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 30)
        saving.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not saving.done()
        gate.set()
        await asyncio.gather(saving, return_exceptions=True)
        assert saving.cancelled() and ("write", [1, 2, 3], (7, 107)) in world.heard
        await one.close()

    asyncio.run(work())
    assert world.state_machine.changed == {"a", "b"}


def test_saves_of_one_shard_do_not_overtake_each_other(world):
    async def work():
        one = Saver()
        async with world.shard.saving:
            saving = asyncio.ensure_future(one.save(world.shard))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert world.heard == []
        await saving
        await one.close()

    asyncio.run(work())
    assert ("saved", {"a", "b"}) in world.heard
