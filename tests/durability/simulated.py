"""A disk for logs in the test's own process that loses unsynced data and fails on demand.

Owns: the shim (shim.c) loaded into this process, the folders of one history.
Invariants: the state after a crash depends on the recorded calls only (disk.PowerCut), never on the
  contents of the real files.
"""

import ctypes
import itertools
import os
import random
from pathlib import Path

from tests.durability.disk import (
    CREATE, MKDIR, SYNC_BEGIN, SYNC_END, WHOLE, WRITE, Event, PowerCut, read_record)

NOTHING, FAIL_ONCE, FULL, DIE, SHORT = range(5)


class SimulatedDisk:
    """The disk. folder: for its successive states. names: its directories."""

    def __init__(self, library: Path, folder: Path, names=()):
        self._lib = ctypes.CDLL(str(library))
        self._lib.shim_table.restype = ctypes.c_size_t
        self._lib.shim_id.restype = ctypes.c_uint64
        self._lib.shim_id.argtypes = [ctypes.c_uint64]
        self._lib.shim_arm.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int]
        self._folder = folder
        self._numbers = itertools.count()
        self._before: list[Event] = []
        self.armed = NOTHING
        self.root = self._next()
        for name in names:
            (self.root / name).mkdir()
        self._begin()

    @property
    def table(self) -> int:
        """Return the disk for LogDir.set_disk."""
        return self._lib.shim_table()

    def arm(self, what: int, calls: int = 0, code: int = 0) -> None:
        self.armed = what
        self._lib.shim_arm(what, calls, code)

    @property
    def happened(self) -> bool:
        return bool(self._lib.shim_happened())

    def rename(self, path: Path, goal: Path) -> None:
        assert self._lib.rename(str(path).encode(), str(goal).encode()) == 0, path

    def sync(self, path: Path) -> None:
        file = os.open(path, os.O_RDONLY)
        assert self._lib.fsync(file) == 0, path
        os.close(file)

    def power_cut(self, generator: random.Random | None) -> None:
        """Continue with the state after a power cut. `generator` chooses surviving unsynced data.
        """
        events = self._before + read_record(self._record)
        goal = self._next()
        PowerCut(events, self.root).write_to(goal, generator)
        self.root = goal
        self._begin()

    def kill(self) -> None:
        """Continue with the state after a kill -9, which preserves the page cache."""
        self.arm(NOTHING)

    def _next(self) -> Path:
        path = self._folder / f"disk{next(self._numbers)}"
        path.mkdir(parents=True)
        return path

    def _begin(self) -> None:
        self.armed = NOTHING
        self._record = self.root.with_suffix(".record")
        self._lib.shim_begin(str(self.root).encode(), str(self._record).encode())
        self._before = [*self._creation_events(), Event(0, 0, 0, 0, 0, SYNC_BEGIN, WHOLE, "", b""),
                        Event(0, 0, 0, 0, 0, SYNC_END, WHOLE, "", b"")]

    def _creation_events(self):
        """Return events that would create the existing files."""
        for path in sorted(self.root.rglob("*")):
            id_ = self._lib.shim_id(path.stat().st_ino)
            kind = MKDIR if path.is_dir() else CREATE
            yield Event(0, id_, 0, 0, 0, kind, 0, str(path), b"")
            if kind == CREATE:
                data = path.read_bytes()
                if data:
                    yield Event(0, id_, 0, 0, len(data), WRITE, 0, str(path), data)
