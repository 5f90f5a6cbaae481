"""Check this machine: limits, memory settings, clock, disks.

Owns: nothing; the one file it writes is unnamed and disappears when it is closed.
Invariants: values that a kernel or container hides are skipped, with the reason.
Source: proc(5), adjtimex(2), statfs(2); Kafka's documentation of operating systems for the limits.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from pathlib import Path

from pylog._native.server.tls import library
from pylog.tools.cli.output import size, span
from pylog.tools.cli.finding import FAIL, OK, SKIP, WARN, Finding

FILES_WANTED = 65_536
FILES_MIN = 4_096
MAPS_WANTED = 262_144
SWAPPINESS_MAX = 10
OPENSSL_WANTED = (3, 5)
FREE_SHARE_WARN, FREE_SHARE_FAIL = 0.15, 0.05
FREE_BYTES_FAIL = 1 << 30
INODES_SHARE_WARN = 0.05
SYNCS, SYNC_WARN_S, SYNC_BYTES = 16, 0.02, 16_384
CLOCK_ERROR_US_MAX = 500_000
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "fuse.glusterfs"}
MEMORY_FS = {"tmpfs", "ramfs"}
PROVEN = {"ext4", "xfs"}
_ERROR_STATE, _UNSYNCHRONISED = 5, 0x40


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def encryption() -> list[Finding]:
    """Report the OpenSSL that brokers started from here use."""
    name = library()
    version = tuple(int(part) for part in name.split()[1].split(".")[:2])
    hint = "" if version >= OPENSSL_WANTED else \
        "; 3.5 and later take a fifth less CPU to encrypt: `make openssl` in a checkout"
    return [Finding("TLS", "", OK, name + hint)]


def limits() -> list[Finding]:
    """Check open files, memory maps and core dumps for processes started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    detail = f"{soft} open files (hard limit {top})"
    advice = f"ulimit -n {FILES_WANTED}, or LimitNOFILE={FILES_WANTED} in the service's unit"
    status = FAIL if 0 <= soft < 1024 else WARN if 0 <= soft < FILES_MIN else OK
    found = [Finding("open files", "", status, detail, advice if status != OK else "")]
    maps = _text("/proc/sys/vm/max_map_count")
    if maps is None:
        found.append(Finding("memory maps", "", SKIP, "vm.max_map_count cannot be read"))
    else:
        low = int(maps) < 65_530
        found.append(Finding("memory maps", "", WARN if low else OK, f"vm.max_map_count={maps}",
                             f"sysctl vm.max_map_count={MAPS_WANTED}" if low else ""))
    found += _broker_limits()
    return found


def broker_processes() -> list[tuple[Path, list[str]]]:
    """Return [(directory in /proc, command line)] of each running brokerd."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # It has ended.
        # Match a script or `python -m pylog`, but not this command itself.
        is_broker = any(word.rpartition(b"/")[2] == b"brokerd" for word in words[:2]) \
            or words[1:3] == [b"-m", b"pylog"]
        if is_broker and "config" not in map(os.fsdecode, words[1:4]):
            found.append((path, [os.fsdecode(word) for word in words if word]))
    return found


def _broker_limits() -> list[Finding]:
    """Check the limits of each running brokerd, which can differ from those of this process."""
    found = []
    for path, _ in broker_processes():
        try:
            row = next(line for line in (path / "limits").read_text().splitlines()
                       if line.startswith("Max open files"))
            used = len(os.listdir(path / "fd"))
        except (OSError, StopIteration):
            continue
        soft = int(row.split()[3])
        status = FAIL if used > 0.9 * soft else WARN if soft < FILES_MIN else OK
        advice = f"start it with a limit of {FILES_WANTED}" if status != OK else ""
        found.append(Finding("brokerd", f"process {path.name}", status,
                             f"{used} of {soft} open files in use", advice))
    return found


def memory() -> list[Finding]:
    """Check swappiness, huge pages and free memory."""
    found = []
    swappiness, swap = _text("/proc/sys/vm/swappiness"), _meminfo("SwapTotal")
    if swappiness is None:
        found.append(Finding("swappiness", "", SKIP, "vm.swappiness cannot be read"))
    elif not swap:
        found.append(Finding("swappiness", "", OK, f"no swap (vm.swappiness={swappiness})"))
    else:
        high = int(swappiness) > SWAPPINESS_MAX
        found.append(Finding(
            "swappiness", "", WARN if high else OK,
            f"vm.swappiness={swappiness}, {size(swap)} of swap",
            "sysctl vm.swappiness=1: a broker reads from the page cache" if high else ""))
    pages = _text("/sys/kernel/mm/transparent_hugepage/enabled")
    if pages is None:
        found.append(Finding("huge pages", "", SKIP, "not shown by this kernel"))
    else:
        chosen = pages.partition("[")[2].partition("]")[0]
        always = chosen == "always"
        found.append(Finding(
            "huge pages", "", WARN if always else OK, f"transparent_hugepage={chosen}",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: memory compaction stalls "
            "threads that wait for a page" if always else ""))
    free, total = _meminfo("MemAvailable"), _meminfo("MemTotal")
    if free is not None and total:
        low = free < 0.05 * total
        found.append(Finding("memory", "", WARN if low else OK,
                             f"{size(free)} of {size(total)} available",
                             "give the machine more CPUs, or stop other programs" if low else ""))
    return found


def _meminfo(name: str) -> int | None:
    for line in (_text("/proc/meminfo") or "").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def clock() -> list[Finding]:
    """Check that the kernel's clock is synchronized."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # struct timex: modes, offset, freq, maxerror, esterror, status, ...; modes 0 only reads.
        words = (ctypes.c_long * 32)()
        state = libc.adjtimex(ctypes.byref(words))
    except (OSError, AttributeError):
        state = -1
    if state < 0:
        return [Finding("clock", "", SKIP, "the kernel does not report it (adjtimex)")]
    error_us, status = words[3], words[5] & 0xFFFFFFFF
    if status & _UNSYNCHRONISED or state == _ERROR_STATE:
        return [Finding("clock", "", WARN, "no time service synchronizes it",
                        "run chrony or systemd-timesyncd: retention and time queries depend on it")]
    late = error_us > CLOCK_ERROR_US_MAX
    return [Finding("clock", "", WARN if late else OK,
                    f"synchronized, off by {span(error_us / 1e6)} at most",
                    "check the time service" if late else "")]


def disk(path: str) -> list[Finding]:
    """Check file system, free space, inodes and fsync latency of one log directory."""
    try:
        space = os.statvfs(path)
    except OSError as error:
        return [Finding("disk", path, FAIL, error.strerror or str(error),
                        "mount it, or take it out of log.dirs")]
    kind, options = mount_of(path)
    found = [_file_system(path, kind, options), _space(path, space)]
    if space.f_files:
        share = space.f_favail / space.f_files
        low = share < INODES_SHARE_WARN
        found.append(Finding("inodes", path, WARN if low else OK, f"{share:.0%} free",
                             "a segment needs four; larger segments need fewer" if low else ""))
    found.append(_flush(path))
    return found


def mount_of(path: str) -> tuple[str, list[str]]:
    """Return (file system, options) of the mount that contains a path; ("", []) if unknown."""
    real = os.path.realpath(path)
    best, found = -1, ("", list[str]())
    for line in (_text("/proc/self/mounts") or "").splitlines():
        _, point, kind, options = line.split()[:4]
        point = point.encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), (kind, options.split(","))
    return found


def _file_system(path: str, kind: str, options: list[str]) -> Finding:
    if not kind:
        return Finding("file system", path, SKIP, "not in /proc/self/mounts")
    if "ro" in options:
        return Finding("file system", path, FAIL, f"{kind}, mounted read-only",
                       "remount it; the kernel does this after errors: see dmesg")
    if kind in REMOTE:
        return Finding("file system", path, WARN, f"{kind}, over the network",
                       "use a local disk: a flush is as slow and as safe as the network")
    if kind in MEMORY_FS:
        return Finding("file system", path, WARN, f"{kind}, in memory",
                       "use a disk: all data is lost when the machine stops")
    if kind not in PROVEN:
        return Finding("file system", path, OK, f"{kind} (ext4 and xfs are better tested)")
    atime = "noatime" in options or "relatime" in options
    return Finding("file system", path, OK if atime else WARN, kind + ("" if atime else ", atime"),
                   "" if atime else "mount it with noatime: each read writes an inode")


def _space(path: str, space: os.statvfs_result) -> Finding:
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    share = free / total if total else 0.0
    status = (FAIL if free < FREE_BYTES_FAIL or share < FREE_SHARE_FAIL
              else WARN if share < FREE_SHARE_WARN else OK)
    return Finding("free space", path, status, f"{size(free)} of {size(total)} ({share:.0%})",
                   "shorten retention.ms or retention.bytes, or add a disk" if status != OK else "")


def _flush(path: str) -> Finding:
    """Measure how long a small append takes to reach the disk, in an unnamed file."""
    try:
        descriptor = os.open(path, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError as error:
        return Finding("flush", path, SKIP, f"cannot write there: {error.strerror}")
    durations_s = []
    try:
        for _ in range(SYNCS):
            begun = time.perf_counter()
            os.write(descriptor, bytes(SYNC_BYTES))
            os.fdatasync(descriptor)
            durations_s.append(time.perf_counter() - begun)
    except OSError as error:
        return Finding("flush", path, FAIL, error.strerror or str(error), "check dmesg")
    finally:
        os.close(descriptor)
    durations_s.sort()
    median, worst = durations_s[len(durations_s) // 2], durations_s[-1]
    slow = median > SYNC_WARN_S
    return Finding("flush", path, WARN if slow else OK,
                   f"fdatasync of 16 KiB takes {span(median)}, at worst {span(worst)}",
                   "an acks=all answer waits for one: a faster disk, or "
                   "log.flush.acks.all.enable=false" if slow else "")
