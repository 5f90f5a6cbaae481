"""Data directories of brokers under test: in memory if there is enough space.

Owns: directories `pylog-<process id>-...`, until remove().
Invariants: the next use removes directories of killed processes, unless they are recent or a broker
  still has them open.

The broker does everything that it does on a disk, including fsync. A file system in memory makes
that fast, and independent of other disk activity: a clean stop flushes the whole file system.
"""

import fcntl
import os
import re
import shutil
import tempfile
import time

MEMORY = "/dev/shm"
FREE_BYTES_MIN = 1 << 30
LEFT_BEHIND_S_MIN = 3600
_NAME = re.compile(r"pylog-(\d+)-.+")


def make(root: str = MEMORY) -> str:
    """Create a directory in `root`, or in the default temporary directory if `root` is too full."""
    if not _has_room(root):
        root = tempfile.gettempdir()
    _sweep(root)
    return tempfile.mkdtemp(prefix=f"pylog-{os.getpid()}-", dir=root)


def remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _has_room(root: str) -> bool:
    try:
        found = os.statvfs(root)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= FREE_BYTES_MIN and os.access(root, os.W_OK | os.X_OK)


def _sweep(root: str) -> None:
    """Remove old directories of processes that no longer exist."""
    for entry in os.scandir(root):
        named = _NAME.fullmatch(entry.name)
        if named and not os.path.exists(f"/proc/{named[1]}") and _is_left_behind(entry.path):
            remove(entry.path)


def _is_left_behind(path: str) -> bool:
    try:
        found = os.stat(path)
        if found.st_uid != os.getuid() or time.time() - found.st_mtime < LEFT_BEHIND_S_MIN:
            return False
        # Process ids are not comparable if containers share the file system.
        descriptor = os.open(os.path.join(path, "data", ".lock"), os.O_RDWR)
    except FileNotFoundError:
        return os.path.isdir(path)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
