"""Kafka's small files in a log directory: contents, and invalid files."""

import errno
import json
import os

import pytest

from pylog import supervisor
from pylog.log import checkpoint_files
from pylog.log.checkpoint_files import CLEAN_SHUTDOWN, read_offsets, write_offsets


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / checkpoint_files.RECOVERY_POINT)


@pytest.mark.parametrize("rows", [[], [("t", 0, 0)], [("a-b", 3, 2**63 - 1), ("a", 10, 7)]])
def test_written_checkpoint_is_read_back(path, rows):
    write_offsets(path, rows)
    assert read_offsets(path) == {(topic, index): offset for topic, index, offset in rows}
    assert not os.path.exists(path + ".tmp")


def test_the_file_is_kafkas(path):
    write_offsets(path, [("t", 1, 5), ("u", 0, 6)])
    assert open(path).read() == "0\n2\nt 1 5\nu 0 6\n"


@pytest.mark.parametrize("text", [
    "", "\n", "0", "0\n", "1\n1\nt 0 5\n", "0\n0\nt 0 5\n", "0\n2\nt 0 5\n", "0\nx\nt 0 5\n",
    "0\n1\nt 0\n", "0\n1\nt 0 5 6\n", "0\n1\nt x 5\n", "0\n1\nt 0 x\n"])
def test_damaged_checkpoint_is_reported_counted_and_kept(path, caplog, text):
    before = supervisor.failures().get("offset checkpoints", 0)
    with open(path, "w") as file:
        file.write(text)
    with pytest.raises(checkpoint_files.DamagedError, match=checkpoint_files.RECOVERY_POINT):
        checkpoint_files.parse_offsets(path)
    assert not caplog.records
    assert read_offsets(path) == read_offsets(path) == {}
    assert supervisor.failures()["offset checkpoints"] == before + 1
    assert [record.path for record in caplog.records] == [path]
    with open(path + checkpoint_files.DAMAGED) as file:
        assert file.read() == text


def test_two_readers_of_a_damaged_checkpoint_both_see_no_rows(path, monkeypatch):
    with open(path, "w") as file:
        file.write("0\n2\nt 0 5\n")

    def renamed_already(source, target):
        raise FileNotFoundError(source)

    monkeypatch.setattr(os, "replace", renamed_already)
    assert read_offsets(path) == {}


def test_missing_file_is_empty_and_an_unreadable_one_is_logged(path):
    assert read_offsets(path) == {}
    os.mkdir(path)
    with pytest.raises(IsADirectoryError):
        read_offsets(path)


def test_clean_stop_marks_are_unique(tmp_path):
    assert checkpoint_files.clean_mark(str(tmp_path)) == ()
    assert checkpoint_files.clean_epoch(str(tmp_path)) == -1
    first = checkpoint_files.write_clean_mark(str(tmp_path), 12)
    assert checkpoint_files.clean_mark(str(tmp_path)) == first and len(first) == 2
    state = os.stat(tmp_path / CLEAN_SHUTDOWN)
    assert first == (state.st_ino, state.st_mtime_ns)
    assert json.loads((tmp_path / CLEAN_SHUTDOWN).read_text()) == {"version": 0, "brokerEpoch": 12}
    assert checkpoint_files.clean_epoch(str(tmp_path)) == 12
    checkpoint_files.remove_clean_mark(str(tmp_path))
    checkpoint_files.remove_clean_mark(str(tmp_path))
    assert checkpoint_files.clean_mark(str(tmp_path)) == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"brokerEpoch": "x"}',
                                  '{"brokerEpoch": null}'])
def test_a_mark_of_which_nothing_can_be_read_has_no_epoch(tmp_path, text):
    (tmp_path / CLEAN_SHUTDOWN).write_text(text)
    assert checkpoint_files.clean_epoch(str(tmp_path)) == -1


def test_clean_stop_mark_is_removed_durably_first(tmp_path, monkeypatch):
    synced = []
    checkpoint_files.write_clean_mark(str(tmp_path), 1)
    monkeypatch.setattr(checkpoint_files, "sync_directory", lambda path: synced.append(
        (path, os.path.exists(tmp_path / CLEAN_SHUTDOWN))))
    checkpoint_files.remove_clean_mark(str(tmp_path))
    assert synced == [(str(tmp_path), False)]
    checkpoint_files.remove_clean_mark(str(tmp_path))
    assert len(synced) == 1


def test_a_file_is_on_disk_before_it_has_its_name_and_its_name_afterwards(path, monkeypatch):
    steps, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda _: steps.append("sync"))
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("rename"), replace(*names)))
    checkpoint_files.write_whole(path, "text")
    assert steps == ["sync", "rename", "sync"] and open(path).read() == "text"


def test_the_names_of_a_new_directory_are_on_disk_up_to_the_file_systems_root(
        tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(checkpoint_files, "sync_directory", synced.append)
    checkpoint_files.make_directory(str(tmp_path / "a/b"))
    assert os.path.isdir(tmp_path / "a/b")
    assert synced[:2] == [str(tmp_path / "a"), str(tmp_path)]
    devices = {os.stat(path).st_dev for path in synced}
    assert devices == {os.stat(tmp_path).st_dev}


@pytest.mark.parametrize(("code", "matters"), [
    (errno.EACCES, False), (errno.EPERM, False), (errno.EINVAL, False), (errno.EIO, True)])
def test_a_directory_above_that_cannot_be_synced_matters_when_its_disk_fails(
        tmp_path, monkeypatch, code, matters):
    tried = []

    def refuse(path):
        tried.append(path)
        raise OSError(code, "planted")

    monkeypatch.setattr(checkpoint_files, "sync_directory", refuse)
    if matters:
        with pytest.raises(OSError, match="planted"):
            checkpoint_files.make_directory(str(tmp_path / "a"))
        assert tried == [str(tmp_path)]
    else:
        checkpoint_files.make_directory(str(tmp_path / "a"))
        assert tried[:2] == [str(tmp_path), str(tmp_path.parent)]


def test_existing_directory_is_flushed_too(tmp_path, monkeypatch):
    """An earlier start may have created it, and been killed before its name was flushed."""
    synced = []
    monkeypatch.setattr(checkpoint_files, "sync_directory", synced.append)
    for _ in range(2):
        synced.clear()
        checkpoint_files.make_directory(str(tmp_path / "a/b"))
        assert synced[:2] == [str(tmp_path.resolve() / "a"), str(tmp_path.resolve())]


def test_failed_checkpoint_write_keeps_the_previous_file(
        tmp_path):
    path = tmp_path / "file"
    checkpoint_files.write_whole(str(path), "before")
    with pytest.raises(OSError, match="full"), checkpoint_files.whole_file(str(path)) as file:
        file.write(b"half")
        raise OSError("full")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
