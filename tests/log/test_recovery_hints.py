"""Kafka's checkpoint files name topics: an entry is used only for the topic that it was written
for.
"""

import errno
import glob
import os
import shutil

import pytest

from pylog._native.log.log import BatchRefused, CorruptLog, Shortage, StorageError
from pylog._native.records import batch
from pylog.log import checkpoint_files
from pylog.log import partition_logs, topic_branches
from pylog.log.cleaner import CHECKPOINT as CLEANER
from pylog.log.topic_branches import Cut
from tests.log.test_manager import append
from tests.log.test_replica_moves import moved
from tests.metadata.node import Node


def checkpointed(node):
    node.logs.upkeep(node.now_ms() + 61_000)


def rows(path, name=checkpoint_files.LOG_START):
    return checkpoint_files.read_offsets(str(path / name))


def forget_lmdb(path):
    for file in glob.glob(str(path / "state.lmdb*")):
        os.unlink(file)


def with_a_late_start(path, records=600):
    """A node whose topic "a" begins at offset `records`, according to all its checkpoints."""
    node = Node(path)
    node.create("a")
    append(node, "a", records=records)
    node.logs.move_start("a", 0, records)
    checkpointed(node)
    return node


@pytest.mark.parametrize("lmdb", [True, False])
def test_recreated_topic_keeps_its_records_after_a_kill(tmp_path, lmdb):
    node = with_a_late_start(tmp_path)
    node.delete("a")
    node.create("a")
    append(node, "a", records=20)
    node.crash()
    if not lmdb:
        forget_lmdb(tmp_path)
    node = Node(tmp_path)
    one = node.logs.get("a", 0)
    assert (one.start_offset, one.end_offset, one.high_watermark) == (0, 20, 20)
    node.stop()


def test_recreated_topic_has_its_torn_tail_truncated(tmp_path):
    """The previous topic's recovery point would create a gap: 20, then 1000."""
    node = Node(tmp_path)
    node.create("a")
    append(node, "a", records=1000)
    checkpointed(node)
    node.delete("a")
    node.create("a")
    append(node, "a", records=20)
    node.crash()
    with open(tmp_path / "a-0" / f"{0:020}.log", "ab") as file:
        file.write(bytes(500))
    node = Node(tmp_path)
    assert node.logs.get("a", 0).end_offset == 20
    assert append(node, "a", records=1) == (20, 20)
    node.stop()


def test_a_kill_between_a_deletion_and_the_next_topic_of_the_name_changes_nothing(tmp_path):
    node = with_a_late_start(tmp_path)
    node.delete("a")
    node.crash()
    node = Node(tmp_path)
    assert rows(tmp_path) == {}
    node.create("a")
    append(node, "a", records=20)
    node.crash()
    node = Node(tmp_path)
    assert (node.logs.get("a", 0).start_offset, node.logs.get("a", 0).end_offset) == (0, 20)
    node.stop()


def test_clean_start_ignores_checkpoints_that_the_stop_could_not_write(tmp_path, monkeypatch):
    node = with_a_late_start(tmp_path)
    node.delete("a")
    with monkeypatch.context() as patched:
        patched.setattr(node.logs.checkpointer, "write_files", lambda: None)
        node.stop()
    node = Node(tmp_path)
    node.create("a")
    append(node, "a", records=20)
    node.crash()
    node = Node(tmp_path)
    assert (node.logs.get("a", 0).start_offset, node.logs.get("a", 0).end_offset) == (0, 20)
    node.stop()


def test_branch_named_like_a_deleted_topic_is_kept_apart(tmp_path):
    node = with_a_late_start(tmp_path)
    node.create("source")
    append(node, "source", records=20)
    node.delete("a")
    id_ = bytes(range(16))
    node.logs.prepare_branch("a", id_, "source", Cut(), {})
    node.logs.create("a", id_, [partition_logs.Role(True, 0, 1)], {})
    assert rows(tmp_path, checkpoint_files.RECOVERY_POINT)["a", 0] == 20
    assert rows(tmp_path).get(("a", 0), 0) == 0
    node.stop()


def test_checkpoint_rows_of_another_directory_are_ignored(tmp_path):
    """While a disk was missing, its topic was deleted, and another of that name created."""
    paths = [tmp_path / "one", tmp_path / "two"]
    node = Node(f"{paths[0]},{paths[1]}")
    node.create("a")
    place = node.logs.dir_index("a", 0)
    append(node, "a", records=20)
    node.crash()
    checkpoint_files.write_offsets(str(paths[1 - place] / checkpoint_files.LOG_START),
                                   [("a", 0, 600)])
    node = Node(f"{paths[0]},{paths[1]}")
    assert (node.logs.get("a", 0).start_offset, node.logs.get("a", 0).end_offset) == (0, 20)
    assert rows(paths[1 - place]) == {}
    node.stop()


def test_directory_of_an_earlier_topic_does_not_replace_an_offline_one(tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "three")]
    text = ",".join(map(str, paths))
    node = Node(text)
    node.create("filler")
    node.create("a")
    append(node, "a")
    place = node.logs.dir_index("a", 0)
    assert place != 0
    node.crash()
    other = 3 - place
    shutil.copytree(paths[place] / "a-0", paths[other] / "a-0")
    (paths[other] / "a-0" / "partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    os.rename(paths[place], tmp_path / "away")
    paths[place].write_text("no directory")
    node = Node(text)
    assert node.logs.get("a", 0) is None and node.logs.is_offline("a", 0)
    assert not (paths[other] / "a-0").exists()
    node.crash()
    paths[place].unlink()
    os.rename(tmp_path / "away", paths[place])
    node = Node(text)
    assert node.logs.get("a", 0).end_offset == 3
    node.stop()


def test_a_copy_of_an_earlier_topic_does_not_become_the_partition(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    append(node, "a")
    node.crash()
    copy = tmp_path / f"a-0.{'0' * 32}-future"
    os.rename(tmp_path / "a-0", copy)
    (copy / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    node = Node(tmp_path)
    assert node.logs.get("a", 0).end_offset == 0
    assert not list(tmp_path.glob("a-0.*-stray"))
    node.stop()


def test_partition_of_a_missing_directory_has_no_recovery_point(tmp_path):
    node = Node(tmp_path)
    node.create("a", configs={"unclean.leader.election.enable": "true"})
    append(node, "a", records=1000)
    checkpointed(node)
    node.crash()
    shutil.rmtree(tmp_path / "a-0")
    node = Node(tmp_path)
    append(node, "a", records=20)
    node.crash()
    with open(tmp_path / "a-0" / f"{0:020}.log", "ab") as file:
        file.write(bytes(500))
    node = Node(tmp_path)
    assert node.logs.get("a", 0).end_offset == 20
    node.stop()


def test_cleaner_starts_over_for_a_recreated_topic(tmp_path):
    node = Node(tmp_path)
    node.create("a", configs={"cleanup.policy": "compact"})
    node.logs.cleaner.forget("nothing")
    node.logs.cleaner._clean_until["a", 0] = 600
    node.logs.cleaner._store(0)
    assert rows(tmp_path, CLEANER) == {("a", 0): 600}
    node.delete("a")
    node.create("a", configs={"cleanup.policy": "compact"})
    assert rows(tmp_path, CLEANER) == {}
    node.crash()
    node = Node(tmp_path)
    assert node.logs.cleaner._load() == {}
    node.stop()


# ---- the start offset returned by DeleteRecords ------------------------------------------------


@pytest.mark.parametrize("when", ["at once", "after a checkpoint"])
def test_deleted_records_stay_deleted_without_state_lmdb(tmp_path, when):
    node = Node(tmp_path)
    node.create("a")
    for _ in range(10):
        append(node, "a", records=10)
    if when != "at once":
        checkpointed(node)
    assert node.logs.move_start("a", 0, 55) == 55
    node.crash()
    forget_lmdb(tmp_path)
    node = Node(tmp_path)
    assert (node.logs.get("a", 0).start_offset, node.logs.get("a", 0).end_offset) == (55, 100)
    node.stop()


def test_deleted_records_stay_deleted_after_a_move(tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    node = Node(f"{paths[0]},{paths[1]}")
    node.create("t")
    for _ in range(10):
        append(node, "t", records=10)
    place = node.logs.dir_index("t", 0)
    node.logs.move_start("t", 0, 55)
    node.logs.move("t", 0, 1 - place)
    moved(node, place=1 - place)
    node.logs.upkeep(node.now_ms())
    assert rows(paths[1 - place])["t", 0] == 55
    assert ("t", 0) not in rows(paths[place])
    node.crash()
    for path in paths:
        forget_lmdb(path)
    node = Node(f"{paths[0]},{paths[1]}")
    assert (node.logs.get("t", 0).start_offset, node.logs.get("t", 0).end_offset) == (55, 100)
    node.stop()


def test_unopenable_log_keeps_its_start_offset(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("a", "b")
    append(node, "a", records=20)
    append(node, "b")
    node.logs.move_start("a", 0, 10)
    node.crash()
    opened = partition_logs.open_log

    def refuse(directory, topic, *rest):
        if topic == "a":
            raise CorruptLog(-111, 2, "a-0")
        return opened(directory, topic, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(partition_logs, "open_log", refuse)
        node = Node(tmp_path)
        assert node.logs.get("a", 0) is None and node.logs.get("b", 0) is not None
        append(node, "b")
        checkpointed(node)
        assert rows(tmp_path)["a", 0] == 10
        node.crash()
    forget_lmdb(tmp_path)
    node = Node(tmp_path)
    assert (node.logs.get("a", 0).start_offset, node.logs.get("a", 0).end_offset) == (10, 20)
    node.stop()


def test_start_offset_that_cannot_be_written_is_not_acknowledged(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("a")
    append(node, "a", records=10)

    def refused(path, offsets):
        raise OSError(errno.ENOSPC, "no space", path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_files, "write_offsets", refused)
        with pytest.raises(StorageError) as raised:
            node.logs.move_start("a", 0, 5)
    assert raised.value.code == 56 and not node.logs.directories[0].offline
    assert node.logs.move_start("a", 0, 5) == 5
    assert rows(tmp_path) == {("a", 0): 5}
    node.stop()


def test_stale_checkpoint_rows_block_reuse_of_the_topic_name(tmp_path, monkeypatch):
    node = with_a_late_start(tmp_path)
    with monkeypatch.context() as patched:
        def refused(path, offsets):
            raise OSError(errno.EMFILE, "too many open files", path)

        patched.setattr(checkpoint_files, "write_offsets", refused)
        node.delete("a")
        node.create("a")
        assert node.logs.get("a", 0) is None and not node.logs.directories[0].offline
    assert node.logs.finish_moves() == ["a"]
    assert rows(tmp_path) == {}
    assert append(node, "a", records=20) == (0, 19)
    node.crash()
    node = Node(tmp_path)
    assert (node.logs.get("a", 0).start_offset, node.logs.get("a", 0).end_offset) == (0, 20)
    node.stop()


def test_full_disk_drops_recovery_points_but_keeps_start_offsets(tmp_path, monkeypatch):
    node = with_a_late_start(tmp_path)
    node.create("b", "plain")
    append(node, "b", records=20)
    append(node, "plain", records=20)
    node.logs.upkeep(node.now_ms() + 130_000)
    node.logs.move_start("b", 0, 7)
    with monkeypatch.context() as patched:
        def refused(path, offsets):
            raise OSError(errno.ENOSPC, "no space", path)

        patched.setattr(checkpoint_files, "write_offsets", refused)
        node.delete("plain")
        node.create("plain")
        assert append(node, "plain", records=2) == (0, 1)
        assert not (tmp_path / checkpoint_files.RECOVERY_POINT).exists()
        node.delete("a")
        node.create("a")
        assert node.logs.get("a", 0) is None
    assert rows(tmp_path)["b", 0] == 7
    assert node.logs.finish_moves() == ["a"]
    assert rows(tmp_path) == {("b", 0): 7}
    node.crash()
    forget_lmdb(tmp_path)
    node = Node(tmp_path)
    assert [(node.logs.get(name, 0).start_offset, node.logs.get(name, 0).end_offset)
            for name in ("a", "b", "plain")] == [(0, 0), (7, 20), (0, 2)]
    node.stop()


def test_unreadable_file_is_not_treated_as_empty(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("a", "b")
    for name in ("a", "b"):
        append(node, name, records=10)
        append(node, name, records=10)
    node.logs.move_start("a", 0, 5)
    opened = open

    def refused(path, *rest, **fields):
        if str(path).endswith("checkpoint"):
            raise OSError(errno.EMFILE, "too many open files", path)
        return opened(path, *rest, **fields)

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", refused)
        with pytest.raises(StorageError):
            node.logs.move_start("b", 0, 7)
    assert node.logs.move_start("b", 0, 7) == 7
    assert rows(tmp_path) == {("a", 0): 5, ("b", 0): 7}
    node.stop()


def test_log_start_within_a_batch_hides_its_earlier_records(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    append(node, "a", records=10)
    node.logs.move_start("a", 0, 4)
    node.crash()
    forget_lmdb(tmp_path)
    node = Node(tmp_path)
    data = memoryview(node.logs.get("a", 0).read(4))
    assert [row[0] for row in batch.records(data)][-1] == 9
    assert node.logs.get("a", 0).start_offset == 4
    node.stop()


@pytest.mark.parametrize("place", [0, 1])
def test_concurrent_record_and_topic_deletion_leaves_no_row(tmp_path, place):
    """Otherwise the next topic of the name would begin there after a crash."""
    paths = [tmp_path / "one", tmp_path / "two"]
    node = Node(f"{paths[0]},{paths[1]}")
    node.create("a")
    if node.logs.dir_index("a", 0) != place:
        node.logs.move("a", 0, place)
        moved(node, "a", place)
    append(node, "a", records=20)
    one, is_asked = node.logs.get("a", 0), []

    class Slow:
        def __getattr__(self, name):
            return getattr(one, name)

        def move_start(self, offset, now_ms):
            start = one.move_start(offset, now_ms)
            is_asked.append(True)
            node.logs._topics.entries["a"].logs[0] = one
            node.logs.delete("a")
            return start

    node.logs._topics.entries["a"].logs[0] = Slow()
    with pytest.raises(KeyError):
        node.logs.move_start("a", 0, 10)
    node.logs.upkeep(node.now_ms())
    assert is_asked and all(("a", 0) not in rows(path) for path in paths)
    node.crash()


def test_log_opened_late_is_reported_with_its_current_state(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("a")
    append(node, "a", records=20)
    node.logs.move_start("a", 0, 5)
    node.crash()
    opened = partition_logs.open_log

    def refused(directory, topic, *rest):
        if topic == "a":
            raise Shortage(-110, 56, "descriptors are short")
        return opened(directory, topic, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(partition_logs, "open_log", refused)
        node = Node(tmp_path)
        assert node.logs.get("a", 0) is None
    assert node.logs.finish_moves() == ["a"]
    append(node, "a", records=20)
    assert node.logs.move_start("a", 0, 25) == 25
    checkpointed(node)
    assert rows(tmp_path)["a", 0] == 25
    assert rows(tmp_path, checkpoint_files.RECOVERY_POINT)["a", 0] == 40
    node.stop()


def test_branch_waits_for_removal_of_stale_checkpoint_rows(
        tmp_path, monkeypatch):
    node = with_a_late_start(tmp_path)
    node.create("b")
    append(node, "b", records=20)
    with monkeypatch.context() as patched:
        def refused(path, offsets):
            raise OSError(errno.EMFILE, "too many open files", path)

        patched.setattr(checkpoint_files, "write_offsets", refused)
        node.delete("a")
        topic_id = bytes(range(16))
        node.logs.prepare_branch("a", topic_id, "b", Cut(), {})
        node.logs.create("a", topic_id, [partition_logs.Role(True, 0, 1)], {})
        assert node.logs.get("a", 0) is None
    assert node.logs.finish_moves() == ["a"]
    assert node.logs.get("a", 0).end_offset == 20 and ("a", 0) not in rows(tmp_path)
    node.crash()


def test_a_branch_that_cannot_be_published_can_be_deleted(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("b")
    append(node, "b", records=20)
    topic_id, roles = bytes(range(16)), [partition_logs.Role(True, 0, 1)]
    with monkeypatch.context() as patched:
        def refused(name, parts):
            raise OSError(errno.EIO, "planted", name)

        patched.setattr(topic_branches, "publish", refused)
        node.logs.prepare_branch("a", topic_id, "b", Cut(), {})
        node.logs.create("a", topic_id, roles, {})
    assert node.logs.get("a", 0) is None and node.logs.finish_moves() == []
    node.logs.configure("a", {"flush.ms": "10"})
    node.logs.delete("a")
    node.logs.create("a", bytes(15) + b"\x09", roles, {})
    assert append(node, "a") == (0, 2)
    node.crash()


def test_settings_changed_during_a_late_open_apply(tmp_path, monkeypatch):
    node = Node(tmp_path)
    opened, how = partition_logs.open_log, ["refuse", "configure"]

    def open_log(*given):
        step = how.pop(0) if how else None
        if step == "refuse":
            raise Shortage(-110, 56, "descriptors are short")
        if step == "configure":
            node.logs.configure("a", {"max.message.bytes": "100"})
        return opened(*given)

    monkeypatch.setattr(partition_logs, "open_log", open_log)
    node.create("a")
    assert node.logs.finish_moves() == ["a"]
    with pytest.raises(BatchRefused):
        append(node, "a", records=100)
    node.stop()
