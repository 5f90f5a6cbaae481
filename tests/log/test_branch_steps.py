"""A branch step by step: its names, its files, its end, and rollback after a rejection."""

import os
import struct
from types import SimpleNamespace

import pytest

from pylog._native.log.log import CorruptLog, LogError
from pylog._native.records import batch
from pylog.log import topic_branches
from pylog.log.errors import StartError
from pylog.log.topic_branches import Part
from pylog.protocol.errors import ErrorCode

TIME = 1_700_000_000_000
ID, OTHER = bytes(15) + b"\1", bytes(15) + b"\2"
STRAY = f"t-0.{ID.hex()}-stray"
DELETE = f"t-0.{ID.hex()}-delete"


def failure():
    return LogError(5, ErrorCode.KAFKA_STORAGE_ERROR, "planted")


# Names.

@pytest.mark.parametrize(("length", "left"), [(1, 1), (214, 214), (215, 214), (249, 214)])
def test_the_name_before_publication_fits_into_a_file_system(length, left):
    """255 bytes: "-0.", 32 digits and "-stray" take 41."""
    name = topic_branches._directory("x" * length, 0, ID)
    assert name == "x" * left + f"-0.{ID.hex()}-stray" and len(name) <= 255
    assert topic_branches.STRAY.fullmatch(name).groups() == ("x" * left, "0", ID.hex())


@pytest.fixture
def root(tmp_path):
    (tmp_path / STRAY).mkdir()
    (tmp_path / STRAY / "branch").touch()
    return tmp_path


def part(root, name=STRAY):
    return Part(0, str(root / name), None)


def test_a_published_branch_has_its_partitions_name_and_no_mark_and_that_is_on_disk(
        root, monkeypatch):
    second = root / STRAY.replace("t-0", "t-1")
    second.mkdir()
    (second / "branch").touch()
    synced = []
    monkeypatch.setattr(topic_branches, "sync_directory",
                        lambda path: synced.append((path, sorted(os.listdir(path)))))
    topic_branches.publish("t", [part(root), part(root, second.name)])
    assert synced == [(str(root), ["t-0", "t-1"])]
    assert os.listdir(root / "t-0") == os.listdir(root / "t-1") == []


def test_discarded_branch_is_removed_even_if_it_cannot_be_renamed(root, monkeypatch):
    doomed = []
    remove = topic_branches.remove_tree
    monkeypatch.setattr(topic_branches, "remove_tree",
                        lambda path: doomed.append(path) or remove(path))
    topic_branches.discard([part(root)])
    assert os.listdir(root) == [] and doomed == [str(root / DELETE)]
    topic_branches.discard([part(root)])
    assert doomed[1:] == [str(root / STRAY)]


# Recovery at a start.

class Disks:
    """One log directory. renames: True if directories in it can be renamed."""

    def __init__(self, root, *listing):
        self.paths, self.listings, self.refuses = [str(root)], [set(listing)], None

    def rename_only_copy(self, number, name, goal):
        if isinstance(self.refuses, Exception):
            raise self.refuses
        if self.refuses:
            return False
        os.rename(os.path.join(self.paths[number], name), os.path.join(self.paths[number], goal))
        return True


@pytest.mark.parametrize("marked", [True, False])
def test_branch_of_an_existing_topic_becomes_its_partition(root, marked):
    if not marked:
        os.unlink(root / STRAY / "branch")
    places = {"u-0": 0}
    assert topic_branches.take_left_over(Disks(root, STRAY), {ID: "t"}, places) == []
    assert places == {"u-0": 0, "t-0": 0} and os.listdir(root / "t-0") == []


def test_shortened_branch_directory_gets_the_full_topic_name(root):
    places = {}
    topic_branches.take_left_over(Disks(root, STRAY), {ID: "t" * 249}, places)
    assert places == {"t" * 249 + "-0": 0} and os.listdir(root) == ["t" * 249 + "-0"]


def test_partition_is_missing_if_its_disk_rejects_the_name(root):
    disks, places = Disks(root, STRAY), {}
    disks.refuses = True
    assert topic_branches.take_left_over(disks, {ID: "t"}, places) == [] and places == {}
    disks.refuses = StartError("planted")
    with pytest.raises(StartError):
        topic_branches.take_left_over(disks, {ID: "t"}, places)


@pytest.mark.parametrize(("names", "places"), [
    ({}, {}), ({OTHER: "t"}, {}), ({ID: "t"}, {"t-0": 0})])
def test_branch_without_a_topic_or_with_an_existing_partition_must_be_removed(root, names, places):
    before = dict(places)
    assert topic_branches.take_left_over(Disks(root, STRAY), names, places) == [str(root / DELETE)]
    assert os.listdir(root) == [DELETE] and places == before


@pytest.mark.parametrize(("content", "removed"), [
    ((), True), (("branch",), True), (("branch", "x.log"), True), (("x.log",), False)])
def test_unmarked_stray_directory_is_foreign_unless_empty(
        root, content, removed):
    os.unlink(root / STRAY / "branch")
    for name in content:
        (root / STRAY / name).touch()
    left = topic_branches.take_left_over(Disks(root, STRAY), {}, {})
    assert left == [str(root / DELETE)] * removed
    assert os.listdir(root) == [DELETE if removed else STRAY]


@pytest.mark.parametrize("name", [
    f"t-0.{ID.hex()}-future", f"t-0.{ID.hex()[1:]}-stray", f"t.{ID.hex()}-stray", "t-0",
    f"t-\u0663.{ID.hex()}-stray"])
def test_other_names_are_ignored(root, name):
    (root / name).mkdir(exist_ok=True)
    assert topic_branches.take_left_over(Disks(root, name), {ID: "t"}, {}) == []
    assert (root / name).exists()


def test_regular_file_with_a_branch_name_is_ignored(root):
    name = STRAY.replace("t-0", "t-5")
    (root / name).touch()
    assert topic_branches.take_left_over(Disks(root, name), {ID: "t"}, {}) == []
    assert (root / name).exists()


# Files.

class Source:
    """A log with segments of 10 records in a directory; the last one is active."""

    topic, partition, start_offset, leader_epoch = "s", 0, 0, 7

    def __init__(self, root, bases=(0, 10, 20), sizes=(5, 6, 0)):
        self.folder, self.rows = root / "s-0", list(zip(bases, sizes))
        self.end_offset = self.flushed_offset = 20
        self.log_dir = SimpleNamespace(path=str(root))
        self.folder.mkdir()
        for base, size in self.rows:
            (self.folder / f"{base:020d}.log").write_bytes(bytes(size))

    def segments(self):
        return b"".join(struct.pack("=qqq", *row, 0) for row in self.rows)

    def flush(self):
        pass


@pytest.fixture
def source(root):
    return Source(root)


def link(source, root, end=20):
    path = root / "branch-of-it"
    path.mkdir(exist_ok=True)
    linked = topic_branches._link(source, str(source.folder), str(path), end)
    return linked, sorted(os.listdir(path))


@pytest.mark.parametrize(("end", "bases"), [
    (0, []), (1, [0]), (10, [0]), (11, [0, 10]), (20, [0, 10]), (99, [0, 10])])
def test_sealed_segments_that_begin_below_the_end_are_shared(source, root, end, bases):
    same, names = link(source, root, end)
    assert same and names == [f"{base:020d}.log" for base in bases]
    for name in names:
        assert os.stat(root / "branch-of-it" / name).st_ino == os.stat(source.folder / name).st_ino


def test_empty_segments_are_left_out(root):
    assert link(Source(root, sizes=(0, 6, 0)), root) == (True, [f"{10:020d}.log"])


def test_existing_indexes_are_linked(source, root):
    for name in (f"{0:020d}.index", f"{10:020d}.timeindex", f"{20:020d}.index"):
        (source.folder / name).touch()
    assert link(source, root)[1] == [
        f"{0:020d}.index", f"{0:020d}.log", f"{10:020d}.log", f"{10:020d}.timeindex"]


def test_epochs_and_producers_up_to_the_end_of_the_source_are_copied(source, root):
    copied = ["leader-epoch-checkpoint", f"{0:020d}.snapshot", f"{20:020d}.snapshot"]
    for name in (*copied, f"{21:020d}.snapshot", "x.snapshot", "partition.metadata"):
        (source.folder / name).write_text(name)
    _, names = link(source, root, 0)
    assert names == sorted(copied)
    for name in names:
        assert (root / "branch-of-it" / name).read_text() == name
        assert os.stat(root / "branch-of-it" / name).st_nlink == 1


def test_segment_deleted_or_grown_during_linking_is_detected(source, root):
    os.unlink(source.folder / f"{10:020d}.log")
    assert link(source, root)[0] is False
    (source.folder / f"{10:020d}.log").write_bytes(bytes(7))
    for name in os.listdir(root / "branch-of-it"):
        os.unlink(root / "branch-of-it" / name)
    assert link(source, root)[0] is False


def test_producer_snapshot_deleted_during_linking_is_detected(source, root, monkeypatch):
    (source.folder / f"{20:020d}.snapshot").write_text("old")
    listed = os.listdir(source.folder)
    os.unlink(source.folder / f"{20:020d}.snapshot")
    monkeypatch.setattr(topic_branches.os, "listdir", lambda path: listed)
    path = root / "branch-of-it"
    path.mkdir()
    assert topic_branches._link(source, str(source.folder), str(path), 100) is False


def test_replaced_segments_are_detected(source, root):
    asked = []

    def segments():
        asked.append(len(asked))
        return struct.pack("=qqq", 0, 5, 0) * (2 if len(asked) > 1 else 1) + bytes(24)

    source.segments = segments
    assert link(source, root)[0] is False


def test_transactions_that_were_aborted_below_the_end_are_copied(source, root):
    entry = struct.Struct(">hqqqq")
    rows = [entry.pack(0, 1, 0, last, 4) for last in (3, 11, 12)]
    (source.folder / f"{0:020d}.txnindex").write_bytes(b"".join(rows) + b"torn")
    link(source, root, 12)
    copy = root / "branch-of-it" / f"{0:020d}.txnindex"
    assert copy.read_bytes() == rows[0] + rows[1] and not (
        root / "branch-of-it" / f"{10:020d}.txnindex").exists()


# End of the branch.

class Target:
    """A branch to be truncated; batches begin at `bases`."""

    def __init__(self, end_offset, bases=()):
        self.end_offset, self.bases, self.cut, self.appended = end_offset, bases, [], []

    def truncate(self, offset):
        self.cut.append(offset)
        self.end_offset = max([base for base in self.bases if base <= offset], default=offset)

    def append_as_follower(self, data, now_ms):
        (_, head), = batch.walk(data)
        assert head.base_offset == self.end_offset and now_ms == TIME and batch.crc_ok(data)
        self.end_offset = head.base_offset + head.last_offset_delta + 1
        self.appended.append((head, batch.records(data)))


def batch_at(base, count=5, **more):
    rows = [(b"k", b"%d" % (base + at), TIME + at, ()) for at in range(count)]
    return batch.build(rows, base_offset=base, leader_epoch=4, **more)


def cut_off(end, data=None, bases=(0, 10), start=0, read=None):
    target, asked = Target(15, bases), []

    def read_one(offset, *more, **named):
        asked.append((offset, more, named))
        if read is not None:
            raise read
        return data

    topic_branches._end_before(
        target, SimpleNamespace(start_offset=start, read=read_one), end, TIME)
    return target, asked


@pytest.mark.parametrize("end", [15, 16])
def test_a_branch_that_ends_early_enough_is_not_cut(end):
    target, asked = cut_off(end)
    assert (target.cut, asked, target.end_offset) == ([], [], 15)


def test_cut_at_a_batch_boundary_copies_nothing():
    target, asked = cut_off(10)
    assert (target.cut, asked, target.end_offset) == ([10], [], 10)


@pytest.mark.parametrize("end", [11, 14])
def test_branch_keeps_records_of_the_last_batch_below_its_end(end):
    data = batch_at(10, codec=2, producer_id=9, producer_epoch=3, base_sequence=2**31 - 2,
                    attributes=batch.TRANSACTIONAL)
    target, asked = cut_off(end, data)
    assert asked == [(10, (1,), {"at_least_one": True})] and target.end_offset == end
    (head, rows), = target.appended
    assert [(row[0], row[1], row[3]) for row in rows] == [
        (10 + at, TIME + at, b"%d" % (10 + at)) for at in range(end - 10)]
    assert (head.producer_id, head.producer_epoch, head.base_sequence, head.leader_epoch) == (
        9, 3, 2**31 - 2, 4)
    assert head.attributes == batch.TRANSACTIONAL | 2


def test_compaction_gaps_and_sequences_are_kept(monkeypatch):
    records = batch.records
    monkeypatch.setattr(topic_branches.batch, "records", lambda data: [
        row for row in records(data) if row[0] != 11])
    target = Target(15, (0, 10))
    target.append_as_follower = lambda data, now_ms: target.appended.append(
        (next(iter(batch.walk(data)))[1], [row[0] for row in records(data)]))
    data = batch_at(10, producer_id=9, producer_epoch=3, base_sequence=2**31 - 2)
    topic_branches._end_before(
        target, SimpleNamespace(start_offset=0, read=lambda *_, **__: data), 14, TIME)
    assert [(head.base_sequence, found) for head, found in target.appended] == [
        (2**31 - 2, [10]), (0, [12, 13])]


def test_records_without_a_producer_have_no_sequence():
    assert cut_off(12, batch_at(10))[0].appended[0][0].base_sequence == -1
    numbered = batch_at(10, producer_id=1, producer_epoch=0, base_sequence=0)
    assert cut_off(12, numbered)[0].appended[0][0].base_sequence == 0


def test_batch_that_begins_below_the_start_is_read_from_the_start():
    target, asked = cut_off(13, batch_at(10), start=12)
    assert asked[0][0] == 12
    assert [row[0] for row in target.appended[0][1]] == [10, 11, 12]


def test_branch_ends_before_damage():
    spoiled = bytearray(batch_at(10))
    spoiled[-1] ^= 1
    for given in ({"data": bytes(spoiled)}, {"data": b""},
                  {"read": CorruptLog(-111, 2, "s-0")}):
        target, _ = cut_off(12, **given)
        assert target.end_offset == 10 and target.appended == []


@pytest.mark.parametrize(("offsets", "runs"), [
    ([], []), ([4], [[4]]), ([4, 5, 6], [[4, 5, 6]]), ([4, 6, 7, 9], [[4], [6, 7], [9]])])
def test_runs_have_no_gaps(offsets, runs):
    found = topic_branches._runs([(at,) for at in offsets])
    assert [[row[0] for row in run] for run in found] == runs


def producer(number, first, epoch=2, coordinator_epoch=6):
    return struct.pack(">qhiqiqiq", number, epoch, 0, 0, 0, TIME, coordinator_epoch, first)


def test_open_transactions_are_aborted_in_the_order_in_which_they_began():
    target = Target(15)
    target.producers = lambda now_ms: bytes(10) + producer(1, 8) + producer(2, -1) + producer(
        3, 0, epoch=5, coordinator_epoch=-1)
    topic_branches._abort_open(target, 7, TIME)
    assert [(head.producer_id, head.producer_epoch, head.base_offset, head.leader_epoch,
             head.attributes) for head, _ in target.appended] == [
        (3, 5, 15, 7, 48), (1, 2, 16, 7, 48)]
    # A marker's key: version, type 0 for an abort; its value: version, coordinator's epoch.
    assert [(row[2], row[3], row[1]) for _, (row,) in target.appended] == [
        (bytes(4), struct.pack(">hi", 0, epoch), TIME) for epoch in (0, 6)]
