"""Memory-mapped files that are truncated, damaged or unreadable on disk.

No page fault ends the process; the result is an error of the log directory or a rebuilt file.
"""

import ctypes
import errno
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pylog._native.log import damage_report, log, replica_move
from pylog._native.records import batch
from tests.durability.disk import shim
from tests.native.log.test_log import NOW, checkpoint_of, make, offsets, opened
from tests.native.log.test_recovery import SMALL, filled, read_all
from tests.native.log.test_restart_checkpoint import killed, recovered, remembered, started, walked

ROOT = Path(__file__).resolve().parents[3]
# An index entry for almost every batch, more than fit into a page of either index.
DENSE = {"internal.segment.bytes": 400_000, "index.interval.bytes": 100}
BATCHES = 3000
BEGIN = """
    import ctypes, os, sys
    from pathlib import Path
    from pylog._native.log import log, replica_move as moves
    from tests.native.log.test_log import NOW, make, opened
    from tests.native.log.test_maps import DENSE, count_of, dense, find_all, indexes, unreadable
    folder = Path(sys.argv[1])
    directory = log.LogDir(folder, 2)
"""


@pytest.fixture
def memory(tmp_path):
    with remembered(tmp_path / "logs") as folder:
        yield folder


@pytest.fixture
def path(tmp_path, memory):
    return tmp_path / "logs"


def ran(script, *arguments, **environment):
    """Run a script in a separate process, which an unhandled fault would end."""
    code = textwrap.dedent(BEGIN) + textwrap.dedent(script) + '\nprint("ok")\n'
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True,
        check=False, cwd=ROOT, env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path),
                                        **environment))


def survived(script, *arguments, **environment):
    done = ran(script, *arguments, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def dense(directory, count=BATCHES):
    one = opened(directory, config=DENSE)
    for i in range(count):
        one.append(make(1, now=NOW + i), NOW)
    return one


def find_all(one, step=37):
    """Look up by offset with a bound inside the segment, and by time."""
    for offset in range(0, one.end_offset, step):
        assert offsets(one.read(offset, 1)) == [offset]
        found = offsets(one.read(offset, 700))
        assert found and found == list(range(offset, offset + len(found)))
        assert one.offset_for_time(NOW + offset) == (offset, NOW + offset, 0)


def indexes(folder, extension):
    return sorted((folder / "t-0").glob(f"*.{extension}"))


def count_of(file):
    return file.stat().st_size // (8 if file.suffix == ".index" else 12)


SIZES = ["0", "4096", "5000", "size // 2", "size - 1"]


@pytest.mark.parametrize("extension", ["index", "timeindex"])
@pytest.mark.parametrize("size", SIZES)
def test_index_truncated_under_its_readers_is_rebuilt(tmp_path, extension, size):
    survived("""
        one = dense(directory)
        one.flush()
        find_all(one)
        sealed = indexes(folder, sys.argv[2])[:-1]
        before = [file.read_bytes() for file in sealed]
        assert sealed and min(map(len, before)) > 4096
        for _ in range(2):
            for file in sealed:
                size = file.stat().st_size
                os.truncate(file, eval(sys.argv[3]))
            find_all(one, 7)
            find_all(one, 1)
            # An entry that lost a byte may lead to a place before the right one, and stay.
            if "- 1" not in sys.argv[3]:
                assert [file.read_bytes() for file in sealed] == before
    """, tmp_path, extension, size)


@pytest.mark.parametrize("extension", ["index", "timeindex"])
@pytest.mark.parametrize("end", ["moves.seal(one, NOW); one.flush()", "one.close(NOW)"])
def test_index_truncated_during_appends_is_completed(tmp_path, extension,
                                                                               end):
    survived("""
        config = dict(DENSE, **{"internal.segment.bytes": 1 << 30})
        logs = [opened(directory, topic, config=config) for topic in "tu"]
        def append(count):
            for one in logs:
                for i in range(one.end_offset, one.end_offset + count):
                    one.append(make(1, now=NOW + i), NOW)
        append(1500)
        files = [next((folder / f"{topic}-0").glob(f"*.{sys.argv[2]}")) for topic in "tu"]
        assert count_of(files[0]) >= 1024
        find_all(logs[0])
        os.truncate(files[0], 0)
        find_all(logs[0])
        append(1500)
        find_all(logs[0])
        for one in logs:
            exec(sys.argv[3])
        for kind in (".index", ".timeindex"):
            cut, sound = [file.with_suffix(kind).read_bytes() for file in files]
            assert cut == sound and len(sound) > 8000, kind
    """, tmp_path, extension, end)


def unreadable(folder, monkeypatch, what):
    """Return the address of a disk whose reads of such files fail once the second value is called.
    """
    library = ctypes.CDLL(str(shim(folder)))
    library.shim_table.restype = ctypes.c_size_t
    monkeypatch.setenv("SHIM_ROOT", str(folder))
    monkeypatch.setenv("SHIM_FAULTS", str(folder / "faults"))
    faults = folder / "faults"
    return library, library.shim_table(), lambda: faults.write_text(f"{what} {errno.EIO}\n")


@pytest.mark.parametrize("extension", ["index", "timeindex"])
def test_unreadable_index_takes_its_directory_offline(tmp_path, extension):
    survived("""
        from _pytest.monkeypatch import MonkeyPatch
        library, disk, fail = unreadable(folder, MonkeyPatch(), f"read .{sys.argv[2]}")
        directory.set_disk(disk)
        other = log.LogDir(folder / "other", 2)
        one, sound = dense(directory), dense(other, 10)
        one.flush()
        find_all(one)
        fail()
        for file in indexes(folder, sys.argv[2]):
            os.truncate(file, 0)
        try:
            one.read(500, 1)
            one.offset_for_time(NOW + 500)
        except log.StorageError as error:
            assert error.code == 56
        else:
            raise AssertionError("no error")
        assert directory.failure[1] == "EIO" and not other.offline
        find_all(sound)
    """, tmp_path, extension)


def test_truncated_crash_state_table_only_causes_a_check(path, memory):
    killed(path, memory, """
    one = filled(directory, 20)
    table, = [file for file in os.listdir(memory) if file.startswith("pylog-")]
    os.truncate(f"{memory}/{table}", 0)
    for i in range(20):
        one.append(make(1), NOW)
    more = [opened(directory, f"u{i}") for i in range(200)]
    for other in more:
        other.append(make(1), NOW)
    directory.fail(5)
    """)
    directory = started(path, memory)
    one = recovered(directory)
    assert one.end_offset == 60 and walked(directory) == (one.size_bytes, 0)


def test_tables_of_released_directories_use_no_space_of_others(path, memory):
    for _ in range(100):
        started(path, memory)
    directory = started(path, memory)
    assert list(memory.glob("pylog-*")), directory.failure


def test_unreadable_trusted_log_is_an_error_of_its_directory(
        path, memory, tmp_path, monkeypatch):
    killed(path, memory, "one = filled(directory, 500)")
    _library, disk, fail = unreadable(tmp_path, monkeypatch, "read .log")
    directory = started(path, memory)
    directory.set_disk(disk)
    fail()
    with pytest.raises(log.StorageError):
        recovered(directory)
    assert directory.failure[:2] == (errno.EIO, "EIO")


FOREIGN = """
    import mmap
    one = dense(directory)
    one.flush()
    find_all(one)
    os.truncate(indexes(folder, "index")[0], 0)
    find_all(one)
    print("found", flush=True)
    file = folder / "foreign"
    file.write_bytes(bytes(8192))
    with open(file, "rb") as opened_file:
        data = mmap.mmap(opened_file.fileno(), 0, prot=mmap.PROT_READ)
        os.truncate(file, 0)
        print(data[0])
"""


def test_faults_in_foreign_maps_reach_the_previous_handler(tmp_path):
    # The sanitizers have their own handlers.
    plain = {"ASAN_OPTIONS": "detect_leaks=0:handle_sigbus=0", "TSAN_OPTIONS": "handle_sigbus=0"}
    done = ran(FOREIGN, tmp_path / "a", **plain)
    assert done.returncode == -7 and done.stdout == "found\n"
    done = ran("import faulthandler; faulthandler.enable()\n" + textwrap.dedent(FOREIGN),
               tmp_path / "b", **plain)
    assert done.returncode == -7 and done.stdout == "found\n"
    assert "Fatal Python error: Bus error" in done.stderr


def entry_at(file, number):
    with open(file, "rb") as data:
        return struct.unpack_from(">ii", data.read(), 8 * number)


def put_entry(file, number, offset, position):
    with open(file, "r+b") as data:
        data.seek(8 * number)
        data.write(struct.pack(">ii", offset, position))


WRONG = {
    "a position amid a batch": lambda offset, position: (offset, position + 7),
    "a position of a later batch": lambda offset, position: (offset, position + 8 * 176),
    "a position behind the end": lambda offset, position: (offset, 2**31 - 1),
    "a negative position": lambda offset, position: (offset, -5),
    "nothing": lambda offset, position: (0, 0),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("mapped", [True, False])
def test_damaged_entries_hide_no_record_and_are_repaired(tmp_path, wrong, mapped):
    directory = log.LogDir(tmp_path, 2)
    one = dense(directory, 900)
    replica_move.seal(one, NOW)
    one.settle(NOW)
    file = indexes(tmp_path, "index")[0]
    before = file.read_bytes()
    if mapped:
        find_all(one)
    else:
        saved = checkpoint_of(one)
        one.close(NOW)
    for number in range(20, 40):
        put_entry(file, number, *wrong(*entry_at(file, number)))
    if not mapped:
        one = opened(directory, config=DENSE, **saved)
    find_all(one, 1)
    assert file.read_bytes() == before
    assert damage_report.figures(directory)["damages_kept"] == 0


def test_reader_of_a_damaged_log_does_not_rebuild_its_index_repeatedly(tmp_path):
    directory = log.LogDir(tmp_path, 2)
    one = dense(directory, 900)
    replica_move.seal(one, NOW)
    one.flush()
    found = list(batch.walk(next((tmp_path / "t-0").glob("*.log")).read_bytes()))
    with open(next((tmp_path / "t-0").glob(f"{0:020}.log")), "r+b") as data:
        for position, _ in found[300:310]:
            data.seek(position + 16)
            data.write(b"\x09")
    inodes = set()
    for _ in range(3):
        for offset in range(280, 330):
            try:
                assert offsets(one.read(offset, 1)) == [offset]
            except log.CorruptLog:
                assert 300 <= offset < 310
        inodes.add(indexes(tmp_path, "index")[0].stat().st_mtime_ns)
    assert len(inodes) == 1


def test_the_indexes_of_every_segment_are_on_disk_after_a_roll_and_after_a_clean_stop(tmp_path):
    directory = log.LogDir(tmp_path, 2)
    empty, short, long = [opened(directory, topic, config=SMALL) for topic in ("e", "s", "l")]
    short.append(make(1), NOW)
    replica_move.seal(short, NOW)
    empty.append(make(1), NOW)
    for i in range(60):
        long.append(make(2, now=NOW + i), NOW)
    assert {file.suffix for file in (tmp_path / "s-0").glob(f"{0:020}.*")} >= {
        ".log", ".index", ".timeindex"}
    for one in (empty, short, long):
        one.close(NOW)
    logs = list(tmp_path.glob("*/*.log"))
    assert len(logs) > 6
    for file in logs:
        assert file.with_suffix(".index").exists() and file.with_suffix(".timeindex").exists()
    # The largest time of a segment is its time index's last entry.
    assert struct.unpack(">qi", (tmp_path / f"e-0/{0:020}.timeindex").read_bytes()) == (NOW, 0)


def test_log_continues_with_its_indexes_after_a_clean_stop(tmp_path):
    directory = log.LogDir(tmp_path, 2)
    one = filled(directory, 3)
    one.settle(NOW)
    saved = checkpoint_of(one)
    one.close(NOW)
    again = opened(directory, **saved)
    for i in range(3, 60):
        again.append(make(2, now=NOW + 10 * i), NOW)
    again.close(NOW)
    other = filled(log.LogDir(tmp_path / "other", 2), 60)
    expected = read_all(other)
    other.close(NOW)
    assert read_all(opened(directory)) == expected
    for name in ("index", "timeindex"):
        times = [(tmp_path / at / f"t-0/{0:020}.{name}").read_bytes() for at in (".", "other")]
        assert set(times[1][i:i + 12] for i in range(0, len(times[1]), 12)) <= set(
            times[0][i:i + 12] for i in range(0, len(times[0]), 12)) or name == "index"
