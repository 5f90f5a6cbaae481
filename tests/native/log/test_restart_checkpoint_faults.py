"""Crash state that contradicts the file, although no file time reveals it."""

import os

import pytest

from pylog._native.log import damage_report
from tests.native.log.test_log import NOW, make
from tests.native.log.test_restart_checkpoint import (
    SLOT, SLOTS_AT, header_of, killed, recovered, remembered, started, walked)


@pytest.fixture
def memory(tmp_path):
    with remembered(tmp_path / "logs") as folder:
        yield folder


@pytest.fixture
def path(tmp_path, memory):
    return tmp_path / "logs"


@pytest.mark.parametrize("more", [0, 50])
def test_file_shorter_than_its_crash_state_is_checked(path, memory, more):
    """The disk lost data that it had reported as written, and no file time reveals it."""
    killed(path, memory, "one = filled(directory, 20); one.flush()")
    file, = (path / "t-0").glob("*.log")
    border = file.stat().st_size // 20 * 12
    os.truncate(file, border + more)
    seen = file.stat()
    table, told = header_of(memory)
    for at in range(SLOTS_AT, len(told), SLOT.size):
        inode, *rest = SLOT.unpack_from(told, at)
        if inode == seen.st_ino:
            assert rest[1] > seen.st_size and rest[3] == 40
            SLOT.pack_into(told, at, inode, *rest[:2], seen.st_ctime_ns, rest[3])
    table.write_bytes(told)
    directory = started(path, memory)
    one = recovered(directory)
    assert walked(directory)[1] == 0
    assert (one.end_offset, one.size_bytes) == (24, border) and one.flushed_offset <= 24
    assert [damage.bytes for damage in damage_report.take(directory)] == ([more] if more else [])
    one.become_leader(1)
    assert one.append(make(1), NOW) == (24, 24)
    assert len(list((path / "t-0").glob("*.log"))) == 1


@pytest.mark.parametrize("known", [
    {"recovery_point": -5}, {"recovery_point": (1 << 63) - 1}, {"log_start_offset": (1 << 63) - 1}])
def test_impossible_offsets_in_a_checkpoint_are_ignored(path, memory, known):
    directory = started(path, memory)
    one = recovered(directory)
    one.become_leader(0)
    one.append(make(3), NOW)
    one.flush()
    del one, directory
    directory = started(path, memory)
    one = recovered(directory, **known)
    one.become_leader(1)
    assert one.append(make(2), NOW) == (3, 4)
    one.flush()
    assert (one.start_offset, one.end_offset, one.recovery_point) == (0, 5, 5)
