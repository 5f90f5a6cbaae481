"""Full and failing disks: no partial appends, no acknowledgement after a failed flush."""

import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pylog._native.log import log
from pylog._native.records import batch
from tests.fixtures.child_environment import ENVIRONMENT
from tests.native.log.test_log import NOW, make, offsets, opened

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>
static int broken(const char *what) {
    const char *v = getenv("BROKEN"), *spared = getenv("SPARED");
    return v && access(v, F_OK) == 0 && (!spared || strcmp(spared, what) != 0);
}
int uname(struct utsname *out) {
    int result = ((int (*)(struct utsname *))dlsym(RTLD_NEXT, "uname"))(out);
    if (getenv("RELEASE")) strcpy(out->release, getenv("RELEASE"));
    return result;
}
int fstatfs(int fd, struct statfs *out) {
    int result = ((int (*)(int, struct statfs *))dlsym(RTLD_NEXT, "fstatfs"))(fd, out);
    if (getenv("MAGIC")) out->f_type = strtol(getenv("MAGIC"), NULL, 16);
    return result;
}
int fdatasync(int fd) {
    if (broken("fdatasync")) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
int syncfs(int fd) {
    if (broken("syncfs")) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "syncfs"))(fd);
}
"""

FAILING = """
    import os, sys
    from pylog._native.log import log
    from pylog._native.records import batch
    from tests.native.log.test_log import NOW, make, opened
    directory = log.LogDir(sys.argv[1], 2)
    logs = [opened(directory, "t", p) for p in range(int(sys.argv[2]))]
    for one in logs:
        one.append(make(1), NOW)
        one.flush()
    open(os.environ["BROKEN"], "w").close()
    for one in logs:
        one.append(make(1), NOW)
    def refused(call, *arguments):
        try:
            call(*arguments)
        except log.StorageError as error:
            return error.code
    assert refused(logs[0].flush) == 56
    assert directory.offline and directory.failure == (5, "EIO", "fdatasync"), directory.failure
    os.unlink(os.environ["BROKEN"])
    for one in logs:
        assert refused(one.flush) == 56
        assert refused(one.append, make(1), NOW) == 56
        assert one.flushed_offset == 1 and one.end_offset == 2
        assert len(one.read(0)) > 0
    print("ok")
"""


def ran(tmp_path, script, *arguments, **environment):
    """Run a script with the shim preloaded."""
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True, env=ENVIRONMENT
    )
    # A preloaded sanitizer must stay first.
    preload = f"{os.environ.get('LD_PRELOAD', '')} {shim}".strip()
    env = dict(os.environ, LD_PRELOAD=preload, BROKEN=str(tmp_path / "broken"), **environment)
    done = subprocess.run(
        [
            os.path.realpath(sys.executable),
            "-c",
            textwrap.dedent(script),
            str(tmp_path / "data"),
            *map(str, arguments),
        ],
        env=dict(env, PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
        check=False,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("logs", [1, 40])
def test_failed_flush_takes_the_directory_offline_permanently(tmp_path, logs):
    assert ran(tmp_path, FAILING, logs) == ("ok\n", "")


EXT4, XFS, BTRFS = "ef53", "58465342", "9123683e"
OVERLAY, FUSE, NFS = "794c7630", "65735546", "6969"
# Determine which sync call is used by letting the other one fail.
MANY = """
    import os, sys
    from pylog._native.log import flush_waits as flushes, log
    from tests.native.log.test_log import NOW, make, opened
    directory = log.LogDir(sys.argv[1], 2)
    logs = [opened(directory, "t", p) for p in range(200)]
    directory.settle()
    open(os.environ["BROKEN"], "w").close()
    for one in logs:
        one.append(make(1), NOW)
    try:
        directory.flush()
    except log.StorageError:
        assert directory.failure[1] == "EIO"
    silent = flushes.syncs_each(directory) is not None
    print(directory.failure[2] if directory.failure else "done", silent,
          {one.flushed_offset for one in logs})
"""


@pytest.mark.parametrize("release, magic, trusts", [
    ("5.7.19", EXT4, False), ("4.18.0-553.el8", XFS, False), ("5.15.0-91-generic", EXT4, False),
    ("5.17.0", EXT4, True), ("6.1.0-13-amd64", XFS, True), ("10.2", BTRFS, True),
    ("6.1.0", OVERLAY, False), ("6.1.0", FUSE, False), ("6.1.0", NFS, False), ("odd", EXT4, False)])
def test_group_sync_is_used_only_where_it_reports_errors(tmp_path, release, magic,
                                                                         trusts):
    # syncfs returns no error here, as untrusted kernels and file systems may do; fdatasync does.
    told = ran(tmp_path, MANY, RELEASE=release, MAGIC=magic, SPARED="syncfs")
    assert told == (("done False {1}\n" if trusts else "fdatasync True {0}\n"), "")


def test_failed_group_sync_takes_the_directory_offline(tmp_path):
    told = ran(tmp_path, MANY, RELEASE="6.1.0", MAGIC=EXT4, SPARED="fdatasync")
    assert told == ("syncfs False {0}\n", "")


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True
        ).returncode
    ):
        pytest.skip("needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_full_disk_rejects_appends_and_stays_readable(small_disk):
    directory = log.LogDir(small_disk, 2)
    one = opened(directory, config={"internal.segment.bytes": 1_000_000})
    two = opened(directory, "u")
    two.append(make(1), NOW)
    with pytest.raises(log.StorageError) as caught:
        for _ in range(1000):
            one.append(make(1, size=50_000), NOW)
    assert caught.value.code == 56
    assert not directory.offline
    end = one.end_offset
    assert 60 < end < 90
    tries = 0
    while tries < 3:  # Preallocated space of a closed segment may be released in between.
        try:
            one.append(make(1, size=50_000), NOW)
            tries = 0
        except log.StorageError:
            tries += 1
    assert end <= one.end_offset < 90
    end = one.end_offset
    assert offsets(one.read(end - 1)) == [end - 1]
    assert offsets(two.read(0)) == [0]
    one.move_start(end // 2)
    for file in small_disk.glob("t-0/*.deleted"):
        file.unlink()
    for _ in range(500):  # A running flush may hold the removed files open for a moment.
        try:
            assert one.append(make(1, size=50_000), NOW) == (end, end)
            break
        except log.StorageError:
            time.sleep(0.01)
    assert [h.base_offset for _, h in batch.walk(one.read(end - 1))][-1] == end
    one.close(NOW)
    two.close(NOW)
    again = opened(directory, config={"internal.segment.bytes": 1_000_000})
    assert again.end_offset == end + 1


def test_read_only_directory_is_rejected(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        log.LogDir(tmp_path)
    tmp_path.chmod(0o700)


def test_simulated_full_disk_rejects_appends_until_it_is_removed(tmp_path):
    directory = log.LogDir(tmp_path, 2)
    one = opened(directory)
    one.append(make(3), NOW)
    directory.set_disk(log.DISK_FULL)
    with pytest.raises(log.StorageError):
        one.append(make(2), NOW)
    assert one.end_offset == 3 and offsets(one.read(0)) == [0] and not directory.offline
    directory.set_disk(log.DISK_SYSTEM)
    assert one.append(make(2), NOW) == (3, 4)


def test_disk_that_fails_to_sync_takes_only_its_directory_offline(tmp_path):
    failing, sound = log.LogDir(tmp_path / "a", 2), log.LogDir(tmp_path / "b", 2)
    failing.set_disk(log.DISK_NO_SYNC)
    for directory in (failing, sound):
        opened(directory).append(make(1), NOW)
    one, other = opened(failing, "t", 1), opened(sound, "t", 1)
    one.append(make(1), NOW)
    with pytest.raises(log.StorageError):
        one.flush()
    failing.set_disk(log.DISK_SYSTEM)
    assert failing.offline and failing.failure[1] == "EIO"
    other.append(make(1), NOW)
    other.flush()
    assert not sound.offline
    with pytest.raises(ValueError, match="disk 9"):
        sound.set_disk(9)


# Only fstat and fstatvfs of open files, readdir, and preadv2 from the page cache are allowed.
BY_TABLE = ("open|openat|read|pread|write|pwrite|writev|pwritev|ftruncate|truncate|fallocate|"
            "posix_fallocate|fsync|fdatasync|syncfs|rename|renameat|unlink|unlinkat|mkdirat|rmdir|"
            "linkat|copy_file_range")


def test_logs_call_the_disk_only_through_its_table():
    folder = Path(__file__).resolve().parents[3] / "csrc"
    call = re.compile(rf"(?<![\w>.])({BY_TABLE})\(")
    files = [*folder.glob("segment/*.c"), *folder.glob("log/*.c"), *folder.glob("log_manager/*.c"),
             *folder.glob("compaction/*.c"), folder / "serve/fetch.c", folder / "serve/response.c"]
    # Memory and /dev/null, which no test replaces; and a macro whose argument is named read.
    files = [file for file in files if file.stem not in {
        "restart_checkpoint", "cold_reads", "index_search"}]
    assert len(files) > 30
    found = [f"{file.name}: {line.strip()}" for file in files
             for line in file.read_text().splitlines() if call.search(line)]
    # The directory itself is opened before a test can install a disk.
    assert found == ["directory.c: dir->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);"]


@pytest.mark.parametrize("what", ["append", "flush", "read", "roll", "open", "delete", "truncate"])
def test_any_operation_on_a_failed_disk_takes_its_directory_offline(tmp_path, what):
    directory = log.LogDir(tmp_path, 2)
    one = opened(directory, config={"internal.segment.bytes": 2_000})
    one.append(make(1, size=1_500), NOW)
    directory.set_disk(log.DISK_BROKEN)
    calls = {
        "append": lambda: one.append(make(1), NOW),
        "flush": one.flush,
        "read": lambda: one.read(0),
        "roll": lambda: one.append(make(1, size=1_500), NOW),
        "open": lambda: opened(directory, "u"),
        "delete": lambda: one.delete(NOW),
        "truncate": lambda: one.truncate(0),
    }
    with pytest.raises(log.StorageError) as caught:
        calls[what]()
    assert caught.value.code == 56
    directory.set_disk(log.DISK_SYSTEM)
    assert directory.offline and directory.failure[1] == "EIO"
    with pytest.raises(log.StorageError):
        opened(directory, "v")


def test_truncation_without_space_ends_the_log_at_its_data(tmp_path):
    directory = log.LogDir(tmp_path, 2)
    one = opened(directory, config={"internal.segment.bytes": 2_000})
    for _ in range(4):
        one.append(make(1, size=900), NOW)
    assert len(list(tmp_path.glob("*/*.log"))) == 2
    # A hard link shares the first segment, so the truncation needs space for a copy.
    first = next(tmp_path.glob("*/00000000000000000000.log"))
    os.link(first, tmp_path / "branch")
    directory.set_disk(log.DISK_FULL)
    with pytest.raises(log.LogError):
        one.truncate(1)
    directory.set_disk(log.DISK_SYSTEM)
    assert one.end_offset == 2 and one.high_watermark <= 2
    one.flush()
    assert one.flushed_offset == 2
    one.truncate(1)
    assert one.end_offset == one.flushed_offset == 1
    assert one.append(make(1, size=900), NOW)[0] == 1
    assert one.read(1)


def test_follower_rejects_offsets_that_no_log_can_follow(tmp_path):
    one = opened(log.LogDir(tmp_path, 2), leader=False)
    one.become_follower(0)
    one.append_as_follower(bytearray(make(1)), NOW)
    for base in (2**63 - 1, 2**63 - 2**32 + 2):
        made = bytearray(make(1))
        batch.stamp(made, base, 0)
        with pytest.raises(log.OffsetOutOfRange):
            one.append_as_follower(made, NOW)
    assert one.end_offset == 1


@pytest.mark.parametrize("epoch, in_sync_count", [(-1, 1), (0, 0), (3, -1)])
def test_a_leader_has_an_epoch_and_is_in_sync_with_itself(tmp_path, epoch, in_sync_count):
    one = opened(log.LogDir(tmp_path, 2), leader=False)
    with pytest.raises(ValueError, match="at least 0 and 1"):
        one.become_leader(epoch, in_sync_count)
    assert not one.is_leader
