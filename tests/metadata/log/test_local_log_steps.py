"""The metadata log on a log of this node: permission to append, due snapshots, and data for
observers.
"""

import os

import pytest

from pylog._native.log.log import LogDir, LogError
from pylog._native.records import batch
from pylog.metadata.image import snapshot
from pylog.metadata.image.image import Image
from pylog.metadata.log.local_log import LocalLog
from pylog.metadata.log.metadata_log import Conflict
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

NOW = 1_700_000_000_000


def record(number=0):
    return messages.ProducerIdsRecord(broker_id=-1, next_producer_id=number)


class World:
    """A log that is elected; `clock` is its time."""

    def __init__(self, path, **limits):
        self.path, self.clock = str(path), [NOW]
        self.log = LocalLog(LogDir(self.path), None, lambda: self.clock[0], **limits)
        self.epoch, self.end = self.log.elect(1), 0

    def append(self, count=1):
        self.end = self.log.append(
            [record(self.end + at) for at in range(count)], self.epoch, self.end) + 1

    def snapshot(self, offset):
        self.log.snapshot([record(offset)], offset, self.epoch)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


class Refusing:
    """The native log, with some failing calls."""

    def __init__(self, whole, *calls):
        self._whole, self._calls = whole, calls

    def __getattr__(self, name):
        if name in self._calls:
            return self._fail
        return getattr(self._whole, name)

    @staticmethod
    def _fail(*_, **__):
        raise LogError(5, ErrorCode.KAFKA_STORAGE_ERROR, "planted")


# Appends.

@pytest.mark.parametrize(("epochs", "ends"), [(-1, 0), (1, 0), (0, -1), (0, 1)])
def test_only_the_newest_epoch_appends_and_only_at_the_end(world, epochs, ends):
    world.append(3)
    with pytest.raises(Conflict):
        world.log.append([record()], world.epoch + epochs, 3 + ends)
    assert world.log.append([record(), record()], world.epoch, 3) == 4


def test_failed_rollback_ends_all_appends(world):
    world.append()
    whole = world.log._log
    world.log._log = Refusing(whole, "flush", "truncate")
    with pytest.raises(LogError, match="planted"):
        world.append()
    world.log._log = whole
    for _ in range(2):
        with pytest.raises(LogError, match="planted") as raised:
            world.log.append([record()], world.epoch, whole.end_offset)
        assert (raised.value.error, raised.value.code) == (5, ErrorCode.KAFKA_STORAGE_ERROR)


def test_failed_append_without_data_needs_no_rollback(world):
    whole = world.log._log
    world.log._log = Refusing(whole, "append", "truncate")
    with pytest.raises(LogError):
        world.append()
    world.log._log = whole
    world.append()
    assert whole.end_offset == 1


def test_an_election_counts_on_from_records_and_snapshots(tmp_path):
    world = World(tmp_path)
    world.append()
    assert world.log.elect(1) == world.epoch + 1
    world.log.snapshot([record()], 0, 9)
    world.log.close()
    world.log._log.release()
    assert World(tmp_path).epoch == 10


def test_clean_checkpoint_counts_only_with_its_directory(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    world = World(tmp_path / "a")
    world.append(2)
    checkpoint = world.log.close()
    other = LocalLog(LogDir(str(tmp_path / "b")), checkpoint, lambda: NOW)
    assert list(other.read(0)) == [] and other.append([record()], other.elect(1), 0) == 0


# Contained records.

def test_a_record_is_held_by_its_offset_and_epoch(world):
    world.append(2)
    first = world.epoch
    world.epoch = world.log.elect(1)
    world.append(2)
    held = [(offset, epoch) for offset in range(-2, 5) for epoch in (first, world.epoch)
            if world.log.holds(offset, epoch)]
    assert held == [(-1, first), (-1, world.epoch), (0, first), (1, first), (2, world.epoch),
                    (3, world.epoch)]
    world.snapshot(1)
    world.log.trim(2)
    assert not world.log.holds(1, first) and world.log.holds(2, world.epoch)
    assert world.log.start_offset == 2 and world.log.end_for_epoch(first)[1] == 2


def test_a_read_begins_within_a_batch_and_ends_at_the_end(world):
    for _ in range(3):
        world.append(2)
    assert [one.last_offset for one in world.log.read(0)] == [1, 3, 5]
    assert [one.last_offset for one in world.log.read(3)] == [3, 5]
    assert [one.last_offset for one in world.log.read(4)] == [5]
    assert list(world.log.read(6)) == []


def test_read_from_the_beginning_returns_the_snapshot_and_later_records(world):
    for _ in range(3):
        world.append(2)
    world.snapshot(3)
    found = list(world.log.read(0))
    assert [(one.last_offset, len(one.records)) for one in found] == [(3, 1), (5, 2)]
    assert [one.last_offset for one in world.log.read(1)] == [1, 3, 5]


@pytest.mark.parametrize("trimmed", [False, True])
def test_torn_snapshot_matters_if_the_log_lacks_its_records(world, caplog, trimmed):
    world.append(2)
    world.append(2)
    world.snapshot(1)
    path, _, _ = snapshot.newest(world.log._folder)
    os.truncate(path, os.path.getsize(path) - 1)
    if trimmed:
        world.log.trim(2)
        with pytest.raises(ValueError):
            list(world.log.read(0))
    else:
        assert [one.last_offset for one in world.log.read(0)] == [1, 3]
        assert "a snapshot cannot be read" in caplog.text


def test_records_that_no_snapshot_covers_stay(world):
    world.append(4)
    world.snapshot(1)
    with pytest.raises(AssertionError):
        world.log.trim(3)
    world.log.trim(2)
    assert world.log.start_offset == 2


# Due snapshots.

def test_snapshot_is_due_by_count_once(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalLog, "records_between_snapshots", 10)
    world = World(tmp_path)
    world.append(20)
    due = [offset for offset in range(20) if world.log.snapshot_is_due(offset)]
    assert due[0] in (9, 10) and due == list(range(due[0], 20))
    world.snapshot(14)
    assert world.log.snapshot_end == 15
    assert not any(map(world.log.snapshot_is_due, range(20)))


def test_a_snapshot_is_due_by_bytes(tmp_path):
    world = World(tmp_path)
    world.append()
    size = world.log._log.size_bytes
    for limit, due in ((size - 1, True), (size, True), (size + 1, False)):
        world.log._snapshot_bytes = limit
        assert world.log.snapshot_is_due(0) == due


@pytest.mark.parametrize(("interval", "age", "due"), [
    (1000, 999, False), (1000, 1000, True), (0, 10**12, False), (1000, -5, False)])
def test_a_snapshot_is_due_by_age(tmp_path, interval, age, due):
    """metadata.log.max.snapshot.interval.ms; 0 is never."""
    world = World(tmp_path, snapshot_ms=interval)
    world.append()
    world.clock[0] = NOW + age
    assert world.log.snapshot_is_due(0) == due
    world.snapshot(0)
    world.append()
    assert not world.log.snapshot_is_due(1)


# Data for observers.

def test_read_returns_whole_batches_below_the_end(world):
    for _ in range(3):
        world.append(2)
    bases = {end: [head.base_offset for _, head in batch.walk(
        world.log.read_range(0, end, 1 << 20))] for end in range(7)}
    assert bases == {0: [], 1: [], 2: [0], 3: [0], 4: [0, 2], 5: [0, 2], 6: [0, 2, 4]}
    assert world.log.read_range(3, 6, 1)[:8] == (2).to_bytes(8, "big")


def test_parts_of_the_newest_snapshot_are_sent_and_of_no_other(world):
    world.append(4)
    assert world.log.snapshot_id is None and world.log.snapshot_end == 0
    assert world.log.snapshot_part((2, world.epoch), 0, 10) is None
    world.snapshot(1)
    first = world.log.snapshot_id
    assert first == (2, world.epoch)
    path, _, _ = snapshot.newest(world.log._folder)
    with open(path, "rb") as file:
        data = file.read()
    assert world.log.snapshot_part(first, 0, 7) == (len(data), data[:7])
    assert world.log.snapshot_part(first, 7, 1 << 20) == (len(data), data[7:])
    assert world.log.snapshot_part((2, world.epoch + 1), 0, 10) is None
    world.snapshot(3)
    assert world.log.snapshot_part(first, 0, 10) is None
    assert world.log.snapshot_id == (4, world.epoch)


# Snapshot files.

def test_newest_snapshot_has_the_latest_end_and_other_files_are_ignored(tmp_path):
    assert snapshot.newest(str(tmp_path)) is snapshot.newest(str(tmp_path / "none")) is None
    for name in ("00000000000000000009-0000000008.checkpoint", "x.checkpoint",
                 "00000000000000000010-0000000001.checkpoint",
                 "00000000000000000099-0000000001.checkpoint.part"):
        (tmp_path / name).touch()
    path, end, epoch = snapshot.newest(str(tmp_path))
    assert (os.path.basename(path)[:20], end, epoch) == (f"{10:020d}", 10, 1)


def test_cleanup_keeps_the_current_snapshot_and_other_files(tmp_path):
    (tmp_path / "quorum-state").touch()
    for level in (1, 2):
        snapshot.write(str(tmp_path), [record(level)], 5, 3, NOW)
    assert sorted(os.listdir(tmp_path)) == [
        "00000000000000000005-0000000003.checkpoint", "quorum-state"]
    assert snapshot.read(snapshot.newest(str(tmp_path))[0]) == [record(2)]


@pytest.mark.parametrize(("count", "sizes"), [
    (0, [1, 1]), (1, [1, 1, 1]), (1000, [1, 1000, 1]), (1001, [1, 1000, 1, 1])])
def test_a_snapshot_is_batches_between_a_header_and_a_footer(tmp_path, count, sizes):
    snapshot.write(str(tmp_path), [record(number) for number in range(count)], 5, 3, NOW)
    path, _, _ = snapshot.newest(str(tmp_path))
    with open(path, "rb") as file:
        data = file.read()
    heads = [(position, head) for position, head in batch.walk(data)]
    assert [head.last_offset_delta + 1 for _, head in heads] == sizes
    assert [head.base_offset for _, head in heads] == [
        sum(sizes[:number]) for number in range(len(sizes))]
    assert [bool(head.attributes & batch.CONTROL) for _, head in heads] == [
        number in (0, len(sizes) - 1) for number in range(len(sizes))]
    assert all(head.leader_epoch == 3 for _, head in heads)
    # Its key is that of a control record: version 0, then 3 for the header, 4 for the footer.
    assert [next(iter(batch.records(data[heads[at][0]:])))[2] for at in (0, -1)] == [
        b"\0\0\0\3", b"\0\0\0\4"]
    assert len(snapshot.read(path)) == count


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_truncated_snapshot_is_rejected_even_at_a_batch_boundary(tmp_path, batches):
    snapshot.write(str(tmp_path), [record(1)], 5, 3, NOW)
    path, _, _ = snapshot.newest(str(tmp_path))
    with open(path, "rb") as file:
        starts = [position for position, _ in batch.walk(file.read())]
    os.truncate(path, starts[batches])
    with pytest.raises(ValueError, match="its footer is missing"):
        snapshot.read(path)


def test_an_empty_image_needs_no_record():
    assert snapshot.records_of(Image()) == []


def test_a_record_without_a_value_is_rejected():
    data = batch.build([(None, None, NOW, ())])
    _, head = next(iter(batch.walk(data)))
    with pytest.raises(ValueError, match="empty record"):
        snapshot.decoded(data, head)
