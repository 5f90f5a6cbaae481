"""Where a broker under a test keeps its data: in memory where there is room.

Owns: directories `pylog-<process id>-...`, until remove().
Invariants: (1) what a killed process left behind goes with the next use, unless it is young or a
  broker still has it.

The broker does all that it would do on a disk, fsync included; a file system in memory makes that
quick, and independent of what else writes to the machine's disks (a clean stop flushes the whole
file system).
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
    """A new directory below `root`; in the usual place for temporary files when `root` has too
    little room."""
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
    """Keeps (1)."""
    for entry in os.scandir(root):
        named = _NAME.fullmatch(entry.name)
        if named and not os.path.exists(f"/proc/{named[1]}") and _is_left_behind(entry.path):
            remove(entry.path)


def _is_left_behind(path: str) -> bool:
    try:
        found = os.stat(path)
        if found.st_uid != os.getuid() or time.time() - found.st_mtime < LEFT_BEHIND_S_MIN:
            return False
        # A process id says nothing when the file system is shared between containers.
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
