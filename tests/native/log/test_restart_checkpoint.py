"""Crash state: parts of the log that a start after a kill can trust, and parts that it must check.
"""

import contextlib
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from pylog._native.log import damage_report, log, restart_checkpoint
from pylog._native.records import batch
from tests.native.log.test_log import NOW, TOPIC_ID, make, opened
from tests.native.log.test_recovery import SMALL, read_all

MEMORY = Path("/dev/shm")
SLOTS_AT = 4096
SLOT = struct.Struct("<Qqqqq24x")
HEADER = struct.Struct("<QQQQQ")
BEGIN = """
    import os, sys
    from tests.native.log.test_compaction import transaction
    from tests.native.log.test_log import NOW, TOPIC_ID, make, opened
    from tests.native.log.test_recovery import SMALL, filled
    from pylog._native.log import log, restart_checkpoint as crash_state
    from pylog._native.records import batch
    path, memory = sys.argv[1:]
    directory = log.LogDir(path, 2)
    crash_state.remember(directory, memory)
"""
END = """
    os.kill(os.getpid(), 9)
"""


@contextlib.contextmanager
def remembered(path):
    """A folder in a tmpfs in which crash state about the logs in `path` can be trusted."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        pytest.skip("needs /dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="pylog-test-", dir=MEMORY))
    try:
        directory = started(path, folder)
        if not list(folder.iterdir()):
            pytest.skip("needs Linux 6.8 and a file system that is local")
        del directory
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def memory(tmp_path):
    with remembered(tmp_path / "logs") as folder:
        yield folder


@pytest.fixture
def path(tmp_path, memory):
    return tmp_path / "logs"


def killed(path, memory, script):
    """Run the script in a process that ends as by kill -9."""
    code = textwrap.dedent(BEGIN) + textwrap.dedent(script) + textwrap.dedent(END)
    ended = subprocess.run([sys.executable, "-c", code, str(path), str(memory)],
                           stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == -9, ended.stderr
    # A change within the same clock tick may leave the file's ctime at that of the last append.
    time.sleep(0.03)


def started(path, memory=None):
    directory = log.LogDir(path, 2)
    if memory is not None:
        restart_checkpoint.remember(directory, memory)
    return directory


def recovered(directory, name="t", **known):
    return log.Log.open(directory, name, 0, TOPIC_ID, SMALL, now_ms=NOW, **known)


def walked(directory):
    """Return (checked bytes, trusted bytes)."""
    told = damage_report.figures(directory)
    return told["recovered_bytes"], told["trusted_bytes"]


def state(one, folder):
    """Return the complete result of a recovery."""
    indexes = {file.name: file.read_bytes() for file in folder.iterdir()
               if file.suffix in (".index", ".timeindex")}
    times = [one.offset_for_time(NOW + step) for step in range(-1, 1300, 7)]
    return (one.start_offset, one.end_offset, one.last_stable_offset, one.last_epoch,
            [one.end_for_epoch(epoch) for epoch in range(-1, 9)], one.producers(NOW), indexes,
            times, one.offset_of_max_time(), one.segments(), one.aborted_between(0, 1 << 40),
            read_all(one))


def both(path, memory, tmp_path):
    """Return the results of a start that trusts the crash state and of one that checks everything.
    """
    shutil.copytree(path, tmp_path / "copy")
    checked = started(tmp_path / "copy")
    expected = state(recovered(checked), tmp_path / "copy/t-0")
    directory = started(path, memory)
    return directory, state(recovered(directory), path / "t-0"), expected


def header_of(memory):
    file = next(memory.glob("pylog-*"))
    return file, bytearray(file.read_bytes())


# ---- trusted parts ---------------------------------------------------------------------------


def test_start_after_a_kill_rechecks_nothing(path, memory):
    killed(path, memory, "one = filled(directory, 500)")
    directory = started(path, memory)
    one = recovered(directory)
    assert one.end_offset == 1000
    assert walked(directory) == (0, one.size_bytes)
    assert batch.records(one.read(998))[0][1] == NOW + 4990


@pytest.mark.parametrize("script", [
    "one = filled(directory, 60)",
    "one = filled(directory, 60, SMALL); one.flush()",
    "one = filled(directory, 60, SMALL, producer_id=9, producer_epoch=1)",
    """
    one = opened(directory, config=SMALL)
    for epoch in range(1, 8):
        one.become_leader(epoch)
        for i in range(epoch * 3):
            one.append(make(2, now=NOW + 900 - 70 * epoch + i), NOW)
        if epoch == 5:
            one.flush()
    """, """
    one = log.Log.open(directory, "t", 0, TOPIC_ID, SMALL, now_ms=NOW)
    for turn in range(40):
        transaction(one, 1, [(b"a", b"1")] * 3, 3 * turn, commit=bool(turn % 3))
    one.flush()
    transaction(one, 1, [(b"b", b"2")] * 3, 120, commit=False)
    transaction(one, 2, [(b"c", b"2")] * 3, 0)
    """, """
    one = filled(directory, 90, SMALL)
    one.flush()
    one.truncate(131)
    one.append(make(3), NOW)
    one.flush()
    one.append(make(3), NOW)
    """, """
    one = filled(directory, 60)
    one.settle(NOW)
    one.append(make(300, size=1000), NOW)
    """, """
    one = filled(directory, 60, SMALL)
    one.flush()
    one.move_start(37, NOW)
    one.append(make(1), NOW)
    """])
def test_trusted_bytes_give_the_same_log_as_checked_ones(path, memory, tmp_path, script):
    killed(path, memory, script)
    directory, found, expected = both(path, memory, tmp_path)
    assert found == expected
    assert walked(directory)[1] > 0


def test_duplicate_after_a_kill_returns_its_first_offset(path, memory):
    killed(path, memory, "one = filled(directory, 60, producer_id=9, producer_epoch=1)")
    directory = started(path, memory)
    one = recovered(directory)
    one.become_leader(1)
    again = make(2, now=NOW + 590, producer_id=9, producer_epoch=1, base_sequence=118)
    assert one.append(again, NOW) == (118, 119)
    assert one.end_offset == 120
    assert walked(directory)[0] == 0


def test_flushed_sealed_segments_are_trusted(path, memory):
    killed(path, memory, """
    one = filled(directory, 200, SMALL)
    one.flush()
    one.append(make(1), NOW)
    """)
    assert len(list((path / "t-0").glob("*.log"))) > 5
    directory = started(path, memory)
    one = recovered(directory)
    assert walked(directory) == (0, one.size_bytes)
    assert one.recovery_point == 400


def test_roll_without_a_later_flush_loses_nothing(path, memory):
    killed(path, memory, "one = filled(directory, 30, SMALL)")
    directory = started(path, memory)
    one = recovered(directory)
    checked, believed = walked(directory)
    assert one.end_offset == 60 and checked + believed == one.size_bytes


def test_unopened_and_unwritten_logs_stay_trusted_after_a_second_kill(path, memory):
    killed(path, memory, """
    one, other = filled(directory, 50), opened(directory, "u")
    other.append(make(9), NOW)
    """)
    killed(path, memory, "one = log.Log.open(directory, 't', 0, TOPIC_ID, SMALL, now_ms=NOW)")
    directory = started(path, memory)
    assert [recovered(directory, name).end_offset for name in "tu"] == [100, 9]
    assert walked(directory)[0] == 0


def test_repeated_kills_do_not_use_more_memory(path, memory):
    for _ in range(5):
        killed(path, memory, """
        logs = [opened(directory, f"t{i}") for i in range(60)]
        for one in logs:
            one.append(make(1), NOW)
        """)
        assert header_of(memory)[0].stat().st_size == SLOTS_AT + 64 * SLOT.size


def test_preallocated_space_after_the_end_changes_nothing(path, memory):
    killed(path, memory, """
    import time
    one = opened(directory)
    for _ in range(9):
        one.append(make(50, size=1000), NOW)
        time.sleep(0.05)
    """)
    file = next((path / "t-0").glob("*.log"))
    assert file.stat().st_blocks * 512 > file.stat().st_size + 100_000
    directory = started(path, memory)
    assert recovered(directory).end_offset == 450
    assert walked(directory)[0] == 0


def test_renamed_log_stays_trusted(path, memory):
    killed(path, memory, "one = filled(directory, 50)")
    (path / "t-0").rename(path / "v-0")
    directory = started(path, memory)
    assert recovered(directory, "v").end_offset == 100
    assert walked(directory)[0] == 0


# ---- checked parts -----------------------------------------------------------------------------


FLUSHED = """
    one = filled(directory, 120, SMALL, producer_id=9, producer_epoch=1)
    one.flush()
    one.append(make(1), NOW)
"""


def readable(one, offset):
    """Return True if a valid batch with that base offset can be read."""
    try:
        data = memoryview(one.read(offset, 1))
    except log.CorruptLog:
        return False
    header = next((header for _, header in batch.walk(data)), None)
    return header is not None and header.base_offset == offset and batch.crc_ok(data)


@pytest.mark.parametrize("seed", range(16))
def test_bit_flip_after_the_kill_affects_no_other_batch(path, memory, seed):
    killed(path, memory, FLUSHED)
    chance = random.Random(seed)
    file = chance.choice(sorted((path / "t-0").glob("*.log")))
    data = bytearray(file.read_bytes())
    at = chance.randrange(len(data))
    damaged = [header.base_offset for position, header in batch.walk(memoryview(data))
               if position <= at][-1]
    data[at] ^= 1 << chance.randrange(8)
    with open(file, "r+b") as there:
        there.write(data)
    directory = started(path, memory)
    one = recovered(directory)
    lost = [offset for offset in range(0, 241, 2) if not readable(one, offset)]
    # The epoch is not covered by the CRC.
    assert lost in ([damaged], [])
    assert one.end_offset == (241 if lost != [240] else 240)
    assert bool(damage_report.take(directory)) == bool(lost)
    assert walked(directory)[0] > 0


def spoiled(path, first, last, wrong):
    """Damage the batches from offset `first` to `last`."""
    for file in (path / "t-0").glob("*.log"):
        at = {header.base_offset: position
              for position, header in batch.walk(memoryview(file.read_bytes()))}
        if first in at:
            with open(file, "r+b") as there:
                there.seek(at[first] + 66)
                there.write(wrong * (at[last] - at[first]) if last > first else wrong)


@pytest.mark.parametrize("wrong", [b"\0", b"\xa5"], ids=["zeros", "junk"])
def test_damage_to_several_flushed_batches_affects_no_other_batch(path, memory, wrong):
    killed(path, memory, """
    one = filled(directory, 120, {**SMALL, "internal.segment.bytes": 1 << 20})
    one.flush()
    """)
    spoiled(path, 40, 46, wrong)
    one = recovered(started(path, memory))
    lost = [offset for offset in range(0, 240, 2) if not readable(one, offset)]
    assert lost == [40, 42, 44, 46]
    assert one.end_offset == 240


def test_completely_damaged_tail_is_truncated_even_if_flushed(path, memory):
    killed(path, memory, """
    one = filled(directory, 120, {**SMALL, "internal.segment.bytes": 1 << 20})
    one.flush()
    """)
    spoiled(path, 232, 238, b"\xa5")
    directory = started(path, memory)
    one = recovered(directory)
    assert one.end_offset == 232
    assert damage_report.take(directory)[-1].kind == "cut"
    one.become_leader(5)
    assert one.append(make(1), NOW) == (232, 232)


def test_damage_above_the_flushed_offset_ends_the_log(path, memory):
    killed(path, memory, """
    one = filled(directory, 40, {**SMALL, "internal.segment.bytes": 1 << 20})
    """)
    spoiled(path, 20, 20, b"\xa5")
    directory = started(path, memory)
    assert recovered(directory).end_offset == 20
    assert [damage.kind for damage in damage_report.take(directory)] == ["cut"]


def test_torn_write_is_truncated(path, memory):
    killed(path, memory, """
    one = filled(directory, 20)
    with open(path + "/t-0/%020d.log" % 0, "ab") as file:
        file.write(one.read(0)[:333])
    """)
    directory = started(path, memory)
    one = recovered(directory)
    assert one.end_offset == 40
    assert [damage.kind for damage in damage_report.take(directory)] == ["cut"]
    assert walked(directory)[0] > 0


def test_complete_batch_missing_in_the_crash_state_is_found(path, memory):
    killed(path, memory, """
    one = filled(directory, 20)
    again = bytearray(make(2))
    batch.stamp(again, 40, 0)
    with open(path + "/t-0/%020d.log" % 0, "ab") as file:
        file.write(again)
    """)
    directory = started(path, memory)
    assert recovered(directory).end_offset == 42


def test_a_file_that_was_replaced_is_checked(path, memory):
    killed(path, memory, "one = filled(directory, 20)")
    file = path / "t-0" / f"{0:020}.log"
    shutil.copyfile(file, path / "copy")
    (path / "copy").rename(file)
    directory = started(path, memory)
    one = recovered(directory)
    assert walked(directory) == (one.size_bytes, 0)


def test_a_hard_link_made_after_the_kill_is_a_change(path, memory):
    killed(path, memory, "one = filled(directory, 20)")
    os.link(path / "t-0" / f"{0:020}.log", path / "t-0" / "other")
    directory = started(path, memory)
    assert recovered(directory).end_offset == 40
    assert walked(directory)[1] == 0


def test_failed_disk_is_not_trusted(path, memory):
    killed(path, memory, """
    one = filled(directory, 20)
    directory.set_disk(log.DISK_NO_SYNC)
    try:
        one.flush()
    except log.LogError:
        assert directory.offline
    """)
    directory = started(path, memory)
    assert recovered(directory).end_offset == 40
    assert walked(directory)[1] == 0


def test_released_log_is_checked_when_it_is_reopened(path, memory):
    directory = started(path, memory)
    one = opened(directory, config=SMALL)
    for _ in range(9):
        one.append(make(1), NOW)
    one.release()
    recovered(directory)
    assert walked(directory)[1] == 0


def test_recreated_topic_is_not_confused_with_the_old_one(path, memory):
    killed(path, memory, """
    for size in (50, 20):
        one = filled(directory, size, {"file.delete.delay.ms": 0})
        if size == 50:
            one.delete(NOW)
    """)
    directory = started(path, memory)
    assert recovered(directory).end_offset == 40
    assert walked(directory)[0] == 0


def test_a_branch_and_its_source_are_both_found(path, memory):
    killed(path, memory, """
    one = filled(directory, 60, SMALL)
    one.settle(NOW)
    os.mkdir(path + "/u-0")
    for name in os.listdir(path + "/t-0"):
        os.link(f"{path}/t-0/{name}", f"{path}/u-0/{name}")
    other = opened(directory, "u", config=SMALL)
    other.append(make(3), NOW)
    one.append(make(1), NOW)
    """)
    directory = started(path, memory)
    assert [recovered(directory, name).end_offset for name in "tu"] == [121, 123]


# ---- the table -------------------------------------------------------------------------------


def change(at):
    def act(file, data):
        data[at] ^= 1
        file.write_bytes(data)
    return act


def replaced(make_it):
    def act(file, data):
        file.unlink()
        make_it(file, data)
    return act


HOSTILE = {
    "another magic": change(0),
    "another device": change(8),
    "another directory": change(16),
    "another mount": change(24),
    "void": change(32),
    "readable by others": lambda file, data: file.chmod(0o644),
    "of another user": lambda file, data: os.chown(file, 65534, 65534),
    "with a second name": lambda file, data: os.link(file, file.with_name("other")),
    "cut in the header": lambda file, data: os.truncate(file, 4095),
    "empty": lambda file, data: os.truncate(file, 0),
    "a slot short": lambda file, data: os.truncate(file, SLOTS_AT + SLOT.size - 1),
    "huge": lambda file, data: os.truncate(file, 1 << 40),
    "a link": replaced(lambda file, data: (
        file.with_name("real").write_bytes(data), file.symlink_to("real"))),
    "a pipe": replaced(lambda file, data: os.mkfifo(file)),
    "gone": replaced(lambda file, data: None),
    "of a time to come": lambda file, data: file.write_bytes(
        data[:SLOTS_AT + 24] + struct.pack("<q", 1 << 62) + data[SLOTS_AT + 32:]),
}


@pytest.mark.parametrize("act", HOSTILE.values(), ids=HOSTILE)
def test_untrusted_table_is_ignored(path, memory, act):
    if os.geteuid() != 0 and act is HOSTILE["of another user"]:
        pytest.skip("needs root")
    killed(path, memory, "one = filled(directory, 20)")
    act(*header_of(memory))
    directory = started(path, memory)
    one = recovered(directory)
    assert one.end_offset == 40
    assert walked(directory) == (one.size_bytes, 0)


@pytest.mark.parametrize("seed", range(20))
def test_invalid_table_only_causes_a_check(path, memory, seed):
    chance = random.Random(seed)
    directory = started(path, memory)
    opened(directory).append(make(2), NOW)
    file, data = header_of(memory)
    inode = next((path / "t-0").glob("*.log")).stat().st_ino
    values = [0, 1, -1, inode, (1 << 63) - 1, -(1 << 63), NOW * 1_000_000]
    for _ in range(200):
        row = [chance.choice([chance.getrandbits(63), *values]) for _ in range(5)]
        data += SLOT.pack(row[0] % (1 << 64) if chance.random() < 0.5 else inode, *row[1:])
    data += chance.randbytes(chance.randrange(5000))
    if chance.random() < 0.3:
        data[:HEADER.size] = chance.randbytes(HEADER.size)
    del directory
    file.write_bytes(data)
    file.chmod(0o600)
    again = started(path, memory)
    one = recovered(again)
    assert one.end_offset == 2 and len(read_all(one)) == one.size_bytes
    one.become_leader(1)
    assert one.append(make(1), NOW) == (2, 2)


def test_wrong_headers_in_trusted_bytes_cause_a_full_check(path, memory):
    """The page cache lost writes of the disk, without any changed file time."""
    killed(path, memory, "one = filled(directory, 20, SMALL, producer_id=9, producer_epoch=1)")
    file = max((path / "t-0").glob("*.log"))
    data = bytearray(file.read_bytes())
    data[16] ^= 1
    file.write_bytes(data)
    table, told = header_of(memory)
    seen = file.stat()
    for at in range(SLOTS_AT, len(told), SLOT.size):
        inode, *rest = SLOT.unpack_from(told, at)
        if inode == seen.st_ino:
            SLOT.pack_into(told, at, inode, rest[0], rest[1], seen.st_ctime_ns, rest[3])
    table.write_bytes(told)
    directory = started(path, memory)
    one = recovered(directory)
    assert one.end_offset < 40
    assert [damage.position for damage in damage_report.take(directory)] == [0]
    assert walked(directory)[0] > 0


def test_clean_stop_removes_the_table(path, memory):
    directory = started(path, memory)
    opened(directory).append(make(1), NOW)
    assert len(list(memory.iterdir())) == 1
    restart_checkpoint.forget(directory)
    assert list(memory.iterdir()) == []
    again = started(path, memory)
    del directory
    assert len(list(memory.iterdir())) == 1
    del again
    assert list(memory.iterdir()) == []


def test_tables_of_deleted_directories_are_removed(path, memory, tmp_path):
    gone = tmp_path / "gone"
    killed(gone, memory, "one = filled(directory, 20)")
    alive = started(tmp_path / "alive", memory)
    shutil.rmtree(tmp_path / "alive")
    assert len(list(memory.iterdir())) == 2
    shutil.rmtree(gone)
    started(path, memory)
    assert len(list(memory.iterdir())) == 1
    del alive


def test_table_directory_on_a_disk_is_not_used(path, memory, tmp_path):
    if os.stat(tmp_path).st_dev == os.stat(memory).st_dev:
        pytest.skip("all is in memory here")
    where = tmp_path / "where"
    where.mkdir()
    directory = started(path, where)
    assert list(where.iterdir()) == []
    assert opened(directory).append(make(1), NOW) == (0, 0)


def test_full_tmpfs_stores_the_slots_that_fit(path, memory):
    small = memory / "small"
    small.mkdir()
    if os.geteuid() != 0 or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", small],
            capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        killed(path, small, """
        logs = [opened(directory, f"t{i}") for i in range(70)]
        for one in logs * 2:
            one.append(make(1), NOW)
        """)
        directory = started(path, small)
        logs = [recovered(directory, f"t{i}") for i in range(70)]
        assert {one.end_offset for one in logs} == {2}
        checked, believed = walked(directory)
        # The old table stays while the new one is created: without space for both, all is checked.
        assert checked + believed == 70 * logs[0].size_bytes
    finally:
        subprocess.run(["umount", "-l", small], check=True)
