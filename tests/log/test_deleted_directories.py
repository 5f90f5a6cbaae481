"""Another program deletes, renames or covers the files of a log directory while they are in use."""

import errno
import os
import select
import shutil
import subprocess

import pytest

from pylog._native.log.flush_waits import FlushWaits
from pylog._native.log.log import Log, LogDir, LogError, StorageError
from pylog._native.records import batch
from tests.metadata.node import Node

NOW_MS = 1_700_000_000_000
DIRECTORY_GONE = "the directory was deleted, renamed or covered by another mount"
SYNCFS_LOGS = 40     # Above the number from which one syncfs flushes all logs of a directory.


@pytest.fixture
def directory(tmp_path):
    return LogDir(tmp_path / "data", 1)


def _open(directory, index=0, **config):
    one = Log.open(directory, "t", index, bytes(range(16)), config, now_ms=NOW_MS)
    one.become_leader(0)
    return one


def _append(one, size=100):
    return one.append(batch.build([(b"k", bytes(size), NOW_MS, ())]), NOW_MS)


def _delete_partition(directory):
    shutil.rmtree(os.path.join(directory.path, "t-0"))


def _delete_files(directory):
    folder = os.path.join(directory.path, "t-0")
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))


def _delete_all(directory):
    shutil.rmtree(directory.path)


def _rename(directory):
    os.rename(directory.path, directory.path + ".old")


def _replace(directory):
    _rename(directory)
    os.mkdir(directory.path)


LOSSES = [_delete_all, _rename, _replace]
PARTITION_LOSSES = [_delete_partition, _delete_files]


def _assert_directory_offline(directory):
    assert directory.offline
    assert directory.failure == (errno.ENOENT, "ENOENT", DIRECTORY_GONE)


def _assert_only_lost(directory, lost, other):
    """Check that `lost` serves nothing, and that `other` works."""
    assert lost.offline and not other.offline and not directory.offline
    assert directory.lost_logs == 1
    with pytest.raises(StorageError):
        _append(lost)
    end = other.end_offset
    _append(other)
    other.flush()
    assert other.flushed_offset == other.end_offset == end + 1


@pytest.mark.parametrize("lose", LOSSES)
def test_a_flush_fails_after_the_directory_was_deleted(directory, lose):
    one = _open(directory)
    _append(one)
    one.flush()
    lose(directory)
    _append(one)
    with pytest.raises(StorageError):
        one.flush()
    assert one.flushed_offset == 1
    _assert_directory_offline(directory)
    with pytest.raises(StorageError):
        _append(one)
    one.release()


@pytest.mark.parametrize("lose", PARTITION_LOSSES)
def test_flush_fails_only_the_log_with_deleted_files(directory, lose):
    one, other = _open(directory), _open(directory, 1)
    _append(one)
    one.flush()
    lose(directory)
    _append(one)
    with pytest.raises(StorageError):
        one.flush()
    assert one.flushed_offset == 1
    _assert_only_lost(directory, one, other)
    one.release()
    other.close(NOW_MS)


@pytest.mark.parametrize("lose", LOSSES)
def test_upkeep_detects_a_deleted_directory_without_flushes(directory, lose):
    one = _open(directory)
    _append(one)
    directory.check_free_space()
    assert not directory.offline
    lose(directory)
    directory.check_free_space()
    _assert_directory_offline(directory)
    one.release()


@pytest.mark.parametrize("lose", PARTITION_LOSSES)
def test_upkeep_detects_deleted_unflushed_files(directory, lose):
    one, other = _open(directory), _open(directory, 1)
    _append(one)
    directory.check_free_space()
    assert not one.offline
    lose(directory)
    directory.check_free_space()
    _assert_only_lost(directory, one, other)
    one.release()
    other.close(NOW_MS)


@pytest.mark.parametrize("lose", LOSSES)
def test_a_roll_fails_after_the_directory_was_deleted(directory, lose):
    one = _open(directory, **{"segment.bytes": 1000})
    _append(one, 900)
    lose(directory)
    with pytest.raises(StorageError):
        _append(one, 900)
    assert directory.offline and one.end_offset == 1
    one.release()


def test_roll_fails_only_the_log_with_a_deleted_directory(directory):
    one, other = _open(directory, **{"segment.bytes": 1000}), _open(directory, 1)
    _append(one, 900)
    _delete_partition(directory)
    with pytest.raises(StorageError):
        _append(one, 900)
    assert one.end_offset == 1
    _assert_only_lost(directory, one, other)
    one.release()
    other.close(NOW_MS)


def test_read_of_a_deleted_segment_fails_only_its_log(tmp_path):
    directory = LogDir(tmp_path / "data", 1, open_files_max=1)
    one, other = _open(directory, **{"segment.bytes": 1000}), _open(directory, 1)
    for _ in range(3):
        _append(one, 900)
    one.flush()
    _append(other)
    other.flush()
    _delete_partition(directory)
    with pytest.raises(LogError):
        one.read(0)
    _assert_only_lost(directory, one, other)
    one.release()
    other.close(NOW_MS)


def test_waiters_of_a_lost_log_are_notified(directory):
    one, other = _open(directory), _open(directory, 1)
    _append(one)
    waits = FlushWaits(2)
    assert not waits.wait_visible(0, one, 1, False)
    assert not waits.wait_visible(1, other, 0, False)
    _delete_partition(directory)
    directory.check_free_space()
    assert select.select([waits], [], [], 60)[0]
    assert waits.take() == [0] and one.offline
    one.release()
    other.close(NOW_MS)


def test_directory_settles_despite_deleted_files_of_one_log(directory):
    one, other = _open(directory), _open(directory, 1)
    _append(one)
    _append(other)
    _delete_partition(directory)
    directory.check_free_space()
    directory.settle()
    other.settle(NOW_MS)
    with pytest.raises(StorageError):
        one.settle(NOW_MS)
    assert not directory.offline and other.flushed_offset == 1
    one.release()
    other.close(NOW_MS)


@pytest.mark.parametrize("lose", [_delete_partition, _rename])
def test_a_flush_of_many_logs_fails_after_the_files_of_one_were_deleted(directory, lose):
    logs = [_open(directory, index) for index in range(SYNCFS_LOGS)]
    for one in logs:
        _append(one)
    directory.flush()
    for one in logs:
        _append(one)
    lose(directory)
    with pytest.raises(LogError):
        directory.flush()
    assert directory.offline == (lose is _rename)
    assert logs[0].offline and logs[0].flushed_offset == 1
    if lose is _delete_partition:
        assert [one.flushed_offset for one in logs[1:]] == [2] * (SYNCFS_LOGS - 1)
        assert directory.lost_logs == 1
    for one in logs:
        one.release()


def test_deleting_a_log_and_its_old_segments_keeps_the_directory_online(directory):
    config = {"file.delete.delay.ms": 0, "segment.bytes": 1000, "retention.bytes": 1500}
    kept, deleted = _open(directory, **config), _open(directory, 1, **config)
    for _ in range(5):
        _append(kept, 900)
        _append(deleted, 900)
    assert kept.upkeep(NOW_MS) > 0
    deleted.delete(NOW_MS)
    for _ in range(20):
        _append(kept, 10)
        kept.flush()
        directory.check_free_space()
    assert not directory.offline
    deleted.release()
    kept.close(NOW_MS)


def test_mount_over_a_directory_takes_it_offline(directory):
    one = _open(directory)
    _append(one)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory.path],
                      capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        with pytest.raises(StorageError):
            one.flush()
        _assert_directory_offline(directory)
    finally:
        subprocess.run(["umount", directory.path], check=True)
    one.release()


def _leader(node, index):
    return node.image.topics["a"].partitions[index].leader


def _fill(node):
    for index in (0, 1):
        _append(node.logs.get("a", index))
    node.logs.directories[0].flush()
    node.logs.checkpointer.write(node.service.store)


@pytest.mark.parametrize("stop", ["stop", "crash"])
@pytest.mark.parametrize("emptied", [False, True])
def test_partition_with_deleted_files_does_not_lead_empty_after_a_restart(
        tmp_path, stop, emptied):
    node = Node(tmp_path)
    node.create("a", partitions=2)
    _fill(node)
    folder = tmp_path / "a-0"
    shutil.rmtree(folder)
    _append(node.logs.get("a", 0))
    node.logs.directories[0].check_free_space()
    assert node.logs.take_failed() == [("a", 0)]
    assert node.decide(node.service.controller.leave_offline([("a", 0)]))
    assert _leader(node, 0) == -1 and _leader(node, 1) == node.node_id
    getattr(node, stop)()
    if emptied:
        folder.mkdir()
    again = Node(tmp_path)
    again.logs._wait_ready("a")
    assert again.logs.get("a", 0) is None and again.logs.get("a", 1).end_offset == 1
    for name, index in again.logs.take_failed():
        again.decide(again.service.controller.leave_offline([(name, index)]))
    assert again.logs.is_offline("a", 0) and _leader(again, 0) == -1
    assert _leader(again, 1) == again.node_id
    again.stop()
    # Another start does not forget it, and the topic can be deleted.
    third = Node(tmp_path)
    third.logs._wait_ready("a")
    assert third.logs.get("a", 0) is None and third.logs.is_offline("a", 0)
    third.delete("a")
    third.create("a")
    assert third.logs.get("a", 0).is_leader
    third.stop()


def test_new_partition_with_deleted_files_does_not_lead_empty_after_a_crash(tmp_path):
    node = Node(tmp_path)
    node.create("a")
    _append(node.logs.get("a", 0))
    node.logs.get("a", 0).flush()
    shutil.rmtree(tmp_path / "a-0")
    _append(node.logs.get("a", 0))
    node.logs.directories[0].check_free_space()
    assert node.logs.take_failed() == [("a", 0)]
    node.logs.upkeep(node.now_ms())
    node.crash()
    again = Node(tmp_path)
    again.logs._wait_ready("a")
    assert again.logs.get("a", 0) is None and again.logs.is_offline("a", 0)
    again.stop()


@pytest.mark.parametrize("emptied", [False, True])
def test_unclean_election_restarts_a_partition_without_its_files(tmp_path, emptied):
    node = Node(tmp_path)
    node.create("a", partitions=2, configs={"unclean.leader.election.enable": "true"})
    _fill(node)
    node.crash()
    shutil.rmtree(tmp_path / "a-0")
    if emptied:
        (tmp_path / "a-0").mkdir()
    again = Node(tmp_path)
    again.logs._wait_ready("a")
    assert again.logs.get("a", 0).is_leader and again.logs.get("a", 0).end_offset == 0
    assert again.logs.get("a", 1).end_offset == 1
    again.stop()
