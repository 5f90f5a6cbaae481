"""The log directories of one node: which can be used, which failed, which has room.

Owns: the directories' locks and native LogDirs.
Invariants: (1) one process at a time has a directory; (2) a directory that failed stays offline
  until the next start; (3) the first one holds the metadata: without it there is no broker.
Source: KIP-112 (a disk that fails), KIP-858.
"""

import errno
import fcntl
import logging
import os

from pylog._native import crash_state, flushes
from pylog._native.log import LogDir
from pylog.config import limits
from pylog.log import checkpoint_files as checkpoints
from pylog.log.errors import StartError
from pylog.log.replica_moves import directory_name

LOCK = ".lock"
IDENTITY = "meta.properties"
# The default of log.dir.free.bytes.min.
RESERVE_BYTES_MAX, RESERVE_PART = 1 << 30, 50
QUIET_LOOKS = 5
PROBE, PROBE_BYTES = ".writable", 64 * 1024
# Outlives a broker, not a loss of power: see csrc/log/crash_state.h.
MEMORY = "/dev/shm"

log = logging.getLogger("pylog.log")


class Directories:
    """paths: all that are configured, by number. natives: their LogDirs, None where the start could
    not use one. listings: the names in each at the start. loads: how many partitions each holds.
    """

    def __init__(self, paths, settings, io_pool):
        self.paths = paths
        self.natives = []
        self.listings = []
        self.loads = []
        self._settings = settings
        self._io_pool = io_pool
        self._locks = []
        self._reported = set()       # numbers of those whose failure is in the log
        self._full = set()           # numbers of those whose lack of space is in the log
        self._shortages = {}         # number -> Shortages

    def open(self) -> None:
        """Takes the directories. Raises StartError: none or not the first is usable, or another
        broker has one."""
        open_files_max = _open_files_max(len(self.paths))
        for number, path in enumerate(self.paths):
            native, listing = None, set()
            try:
                if not os.path.exists(os.path.join(path, IDENTITY)):
                    # What is in it counts from when it is formatted: its name is on disk then.
                    checkpoints.make_directory(path)
                self._locks.append(locked(os.path.join(path, LOCK)))
                _read_once(os.path.join(path, IDENTITY))
                listing = set(os.listdir(path))
                native = LogDir(path, self._io_pool, open_files_max=open_files_max)
                crash_state.remember(native, MEMORY)
                why = flushes.syncs_each(native)
                if why is not None:
                    log.info("each log is synced by itself, syncfs may hide errors", extra={
                        "directory": path, "reason": why})
            except OSError as error:
                reason = error.strerror or str(error)
                if number == 0:
                    # Keeps (3).
                    raise StartError(f"log directory {path}: {reason}") from error
                self._reported.add(number)
                log.error("a log directory is offline", extra={
                    "directory": path, "reason": reason})
            self.natives.append(native)
            self.listings.append(listing)
            self.loads.append(0)

    def close(self) -> None:
        for native in filter(None, self.natives):
            crash_state.forget(native)
        self.natives.clear()
        self._io_pool = None
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()

    def online(self, number: int) -> bool:
        native = self.natives[number]
        return native is not None and not native.offline

    def usable(self) -> list:
        """(number, path) of those that are online."""
        return [(number, path) for number, path in enumerate(self.paths) if self.online(number)]

    def least_loaded(self) -> int:
        """Where the next partition goes: a full disk comes last, and after it a cordoned directory,
        which the controller chose before it knew; none is online, the first."""
        numbers = [number for number, _ in self.usable()]
        return min(numbers, key=lambda number: (
            self.is_cordoned(number), self.natives[number].short_of_space,
            self.loads[number])) if numbers else 0

    def is_cordoned(self, number: int) -> bool:
        """Whether a directory keeps what it has and gets no new replica (KIP-1066)."""
        return self.paths[number] in self._settings.cordoned_log_dirs

    def fail(self, number: int, error: OSError) -> bool:
        """A file beside the logs could not be read or written. False: what is short may come back,
        and the directory goes on."""
        native = self.natives[number]
        return native is not None and native.fail(error.errno or errno.EIO)

    def rename(self, number: int, name: str, goal: str) -> bool:
        """Renames a partition's directory, on disk. False: the disk failed or is short."""
        return self._rename(number, name, goal) is None

    def rename_only_copy(self, number: int, name: str, goal: str) -> bool:
        """rename() at a start. False: the disk failed. Raises StartError on a shortage: without its
        directory the partition would be opened empty."""
        error = self._rename(number, name, goal)
        if error is not None and self.online(number):
            raise StartError(f"{os.path.join(self.paths[number], name)} cannot be renamed to "
                             f"{goal}: {error.strerror}; make room and start again") from error
        return error is None

    def _rename(self, number: int, name: str, goal: str) -> OSError | None:
        path = self.paths[number]
        try:
            os.rename(os.path.join(path, name), os.path.join(path, goal))
            checkpoints.sync_directory(path)
        except OSError as error:
            self.fail(number, error)
            return error
        return None

    def set_aside(self, number: int, name: str) -> None:
        """Renames a directory that belongs to no topic; nothing is deleted."""
        topic, _, index = name.rpartition("-")
        if self.rename(number, name, directory_name(topic, index, "stray")):
            log.warning("a partition directory without a topic was set aside", extra={
                "directory": os.path.join(self.paths[number], name)})

    def newly_failed(self) -> list:
        """Numbers of the directories that went offline since the last call, each once."""
        found = [number for number in range(len(self.natives))
                 if not self.online(number) and number not in self._reported]
        for number in found:
            self._reported.add(number)
            _, name, call = self.natives[number].failure
            log.error("a log directory is offline", extra={
                "directory": self.paths[number], "reason": f"{call}: {name}"})
        return found

    def fatal(self) -> str | None:
        """Why the broker cannot go on, in one line; None: it can."""
        if not self.usable():
            return f"all log directories have failed: {', '.join(self.paths)}"
        if not self.online(0):
            return f"the log directory that holds the metadata has failed: {self.paths[0]}"
        return None

    def take_clean_marks(self, stored: list) -> frozenset:
        """Numbers of those whose last stop was clean and ours: the mark in the directory is the one
        in `stored`, of write_clean_marks. The marks are gone afterwards."""
        clean = set()
        for number, path in self.usable():
            try:
                found = list(checkpoints.clean_mark(path))
                checkpoints.remove_clean_mark(path)
                if found and number < len(stored) and stored[number] == found:
                    clean.add(number)
            except OSError as error:
                self.fail(number, error)
        return frozenset(clean)

    def write_clean_marks(self, numbers, broker_epoch: int) -> list:
        """Marks these as cleanly stopped. What it returns must be given to the store."""
        marks: list = [[] for _ in self.paths]
        for number in numbers:
            try:
                marks[number] = list(checkpoints.write_clean_mark(self.paths[number], broker_epoch))
            except OSError as error:
                self.fail(number, error)
                log.error("a directory could not be marked as cleanly stopped", extra={
                    "directory": self.paths[number], "reason": error.strerror})
        return marks

    def look_at_space(self) -> None:
        """Rejects produce requests where less is free than the reserve, and accepts them again.

        Logs each change, and each shortage of room, descriptors or memory that calls met.
        """
        wanted = self._settings["log.dir.free.bytes.min"]
        for number, path in self.usable():
            native = self.natives[number]
            free, total = native.look_at_space()
            reserve = min(RESERVE_BYTES_MAX, total // RESERVE_PART) if wanted < 0 else wanted
            native.look_at_space(reserve)
            self._report_space(number, free, reserve)
            self._shortages.setdefault(number, Shortages(path)).report(native.stats(), free)

    def _report_space(self, number: int, free: int, reserve: int) -> None:
        # An append may have found the disk full before: the native flag is not the last report.
        details = {"directory": self.paths[number], "free_bytes": free, "threshold_bytes": reserve}
        if self.natives[number].short_of_space and number not in self._full:
            self._full.add(number)
            log.error("produce requests are rejected: the disk has less free space than "
                      "log.dir.free.bytes.min; delete data or lower retention", extra=details)
        elif number in self._full and not self.natives[number].short_of_space:
            self._full.remove(number)
            log.warning("produce requests are accepted again: the disk has free space",
                        extra=details)


class Shortages:
    """Logs once when writes to a log directory begin to fail for a shortage, and once when they
    succeed again. A shortage is over after QUIET_LOOKS reports without another one, when a small
    file can be written."""

    def __init__(self, path: str):
        self._path = path
        self._seen = self._quiet = 0
        self._error = 0          # errno of the shortage that is in the log, 0: none

    def report(self, stats: dict, free: int) -> None:
        """stats: LogDir.stats(). free: bytes."""
        count, error = stats["shortages"], stats["short_error"]
        if count != self._seen:
            self._seen, self._quiet = count, 0
            if error != self._error:
                self._error = error
                log.error("writes to a log directory fail and are retried", extra={
                    "directory": self._path, "reason": os.strerror(error), "free_bytes": free})
        elif self._error:
            self._quiet += 1
            if self._quiet >= QUIET_LOOKS and _is_writable(self._path):
                self._error = 0
                log.warning("writes to a log directory succeed again", extra={
                    "directory": self._path, "free_bytes": free})


def _is_writable(folder: str) -> bool:
    path = os.path.join(folder, PROBE)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            return os.pwrite(descriptor, bytes(PROBE_BYTES), 0) == PROBE_BYTES
        finally:
            os.close(descriptor)
            os.unlink(path)
    except OSError:
        return False


def _open_files_max(directories: int) -> int:
    """How many segments a directory may keep open."""
    if limits.descriptors() // 2 < limits.SEGMENT_FILES_LOW:
        log.warning("few files may be open: segments are opened again and again, and connections "
                    "may be refused; raise the limit (ulimit -n)",
                    extra={"limit": limits.descriptors()})
    return limits.segment_files(directories)


def locked(path: str) -> int:
    """A descriptor that holds the lock file, until it is closed or the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # The first keeps out another broker of ours, the second, Java's kind, one of Kafka's.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StartError(f"another broker uses {os.path.dirname(path)}: {LOCK} is held") from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _read_once(path: str) -> None:
    """Raises OSError when a file that is there cannot be read."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except FileNotFoundError:
        return


def remove_tree(path: str) -> None:
    # Imported here: it costs a start 5 ms, and few starts need it.
    import shutil

    shutil.rmtree(path, ignore_errors=True)
