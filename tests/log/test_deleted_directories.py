"""Another program deletes, renames or covers the files of a log directory while they are in use."""

import errno
import os
import shutil
import subprocess

import pytest

from pylog._native import batch
from pylog._native.log import Log, LogDir, LogError, StorageError

NOW_MS = 1_700_000_000_000
FILE_DELETED = "a segment file was deleted while in use"
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


LOSSES = [(_delete_partition, FILE_DELETED), (_delete_files, FILE_DELETED),
          (_delete_all, DIRECTORY_GONE), (_rename, DIRECTORY_GONE), (_replace, DIRECTORY_GONE)]


def _assert_offline(directory, reason):
    assert directory.offline
    assert directory.failure == (errno.ENOENT, "ENOENT", reason)


@pytest.mark.parametrize(("lose", "reason"), LOSSES)
def test_a_flush_fails_after_the_files_were_deleted(directory, lose, reason):
    one = _open(directory)
    _append(one)
    one.flush()
    lose(directory)
    _append(one)
    with pytest.raises(StorageError):
        one.flush()
    assert one.flushed_offset == 1
    _assert_offline(directory, reason)
    with pytest.raises(StorageError):
        _append(one)
    one.release()


@pytest.mark.parametrize(("lose", "reason"), LOSSES)
def test_upkeep_takes_a_deleted_directory_offline_although_nothing_is_flushed(
        directory, lose, reason):
    one = _open(directory)
    _append(one)
    directory.look_at_space()
    assert not directory.offline
    lose(directory)
    directory.look_at_space()
    _assert_offline(directory, reason)
    one.release()


@pytest.mark.parametrize("lose", [_rename, _replace, _delete_all, _delete_partition])
def test_a_roll_fails_after_the_files_were_deleted(directory, lose):
    one = _open(directory, **{"segment.bytes": 1000})
    _append(one, 900)
    lose(directory)
    with pytest.raises(StorageError):
        _append(one, 900)
    assert directory.offline and one.end_offset == 1
    one.release()


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
    assert directory.offline
    assert logs[0].flushed_offset == 1
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
        directory.look_at_space()
    assert not directory.offline
    deleted.release()
    kept.close(NOW_MS)


def test_a_mount_over_the_directory_takes_it_offline(directory):
    one = _open(directory)
    _append(one)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory.path],
                      capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        with pytest.raises(StorageError):
            one.flush()
        _assert_offline(directory, DIRECTORY_GONE)
    finally:
        subprocess.run(["umount", directory.path], check=True)
    one.release()
