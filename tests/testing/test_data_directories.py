"""Data directories of test brokers, and their removal."""

import fcntl
import os
import time

from pylog.testing import data_directories

NEVER_A_PROCESS = 2**22 + 1


def _left(root, name: str, age_s: float = 7200):
    path = root / name
    (path / "data").mkdir(parents=True)
    (path / "data" / ".lock").touch()
    at_s = time.time() - age_s
    os.utime(path, (at_s, at_s))
    return path


def test_directory_is_created_at_the_given_path_if_space_is_available(tmp_path):
    made = data_directories.make(os.fspath(tmp_path))
    assert os.path.dirname(made) == os.fspath(tmp_path)
    data_directories.remove(made)
    assert not os.path.exists(made)


def test_directory_falls_back_to_the_temporary_folder(tmp_path):
    made = data_directories.make(os.fspath(tmp_path / "missing"))
    assert os.path.isdir(made)
    data_directories.remove(made)


def test_directories_of_killed_processes_are_removed(tmp_path):
    old = _left(tmp_path, f"pylog-{NEVER_A_PROCESS}-a")
    data_directories.make(os.fspath(tmp_path))
    assert not old.exists()


def test_new_used_or_foreign_directories_are_kept(tmp_path):
    stays = [_left(tmp_path, f"pylog-{NEVER_A_PROCESS}-young", 60),
             _left(tmp_path, f"pylog-{os.getpid()}-alive"),
             _left(tmp_path, "pylog-notes"), _left(tmp_path, "other")]
    locked = _left(tmp_path, f"pylog-{NEVER_A_PROCESS}-locked")
    with open(locked / "data" / ".lock", "r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        data_directories.make(os.fspath(tmp_path))
    assert all(path.exists() for path in [*stays, locked])
