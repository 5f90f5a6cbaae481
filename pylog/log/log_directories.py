"""The log directories of one node: online or failed, free space, number of partitions.

Owns: the directories' locks and native LogDirs.
Invariants: at most one process uses a directory; a failed directory stays offline until the next
  start; the first directory holds the metadata, so the broker cannot run without it.
Source: KIP-112 (disk failure), KIP-858.
"""

import errno
import fcntl
import logging
import os

from pylog._native.log import flush_waits, restart_checkpoint
from pylog._native.log.log import LogDir
from pylog.config import limits
from pylog.log import checkpoint_files
from pylog.log.errors import StartError
from pylog.log.replica_moves import directory_name

LOCK = ".lock"
IDENTITY = "meta.properties"
# The default of log.dir.min.free.bytes.
RESERVE_BYTES_MAX, RESERVE_PART = 1 << 30, 50
QUIET_LOOKS = 5
PROBE, PROBE_BYTES = ".writable", 64 * 1024
# In memory that survives a broker crash, but not a power failure: see
# csrc/segment/restart_checkpoint.h.
MEMORY = "/dev/shm"

log = logging.getLogger("pylog.log")


class Directories:
    """paths: all configured directories, by number. natives: their LogDirs, None if unusable at
    startup. listings: the names in each directory at startup. loads: number of partitions in each.
    """

    def __init__(self, paths, settings, io_pool):
        self.paths = paths
        self.natives = []
        self.listings = []
        self.loads = []
        self._settings = settings
        self._io_pool = io_pool
        self._locks = []
        self._reported = set()  # numbers of directories whose failure was logged
        self._full = set()  # numbers of directories whose lack of space was logged
        self._shortages = {}  # number -> Shortages

    def open(self) -> None:
        """Lock and open the directories. Raises StartError if none is usable, if the first is not
        usable, or if another broker uses one of them.
        """
        open_files_max = _open_files_max(len(self.paths))
        for number, path in enumerate(self.paths):
            native, listing = None, set()
            try:
                if not os.path.exists(os.path.join(path, IDENTITY)):
                    # The content matters only after formatting, so flush the directory's name to
                    # disk first.
                    checkpoint_files.make_directory(path)
                self._locks.append(locked(os.path.join(path, LOCK)))
                _read_once(os.path.join(path, IDENTITY))
                listing = set(os.listdir(path))
                native = LogDir(path, self._io_pool, open_files_max=open_files_max)
                restart_checkpoint.remember(native, MEMORY)
                why = flush_waits.syncs_each(native)
                if why is not None:
                    log.info("syncfs may not report errors: each log is synced separately", extra={
                        "directory": path, "reason": why})
            except OSError as error:
                reason = error.strerror or str(error)
                if number == 0:
                    # The first directory holds the metadata.
                    raise StartError(f"log directory {path}: {reason}") from error
                self._reported.add(number)
                log.error("a log directory is offline", extra={
                    "directory": path, "reason": reason})
            self.natives.append(native)
            self.listings.append(listing)
            self.loads.append(0)

    def close(self) -> None:
        for native in filter(None, self.natives):
            restart_checkpoint.forget(native)
        self.natives.clear()
        self._io_pool = None
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()

    def online(self, number: int) -> bool:
        native = self.natives[number]
        return native is not None and not native.offline

    def usable(self) -> list:
        """Return (number, path) of each online directory."""
        return [(number, path) for number, path in enumerate(self.paths) if self.online(number)]

    def least_loaded(self) -> int:
        """Return the directory for the next partition. Full disks come last, cordoned directories
        after them: the controller may have chosen this node before the directory was cordoned.
        Return 0 if no directory is online.
        """
        numbers = [number for number, _ in self.usable()]
        return min(numbers, key=lambda number: (
            self.is_cordoned(number), self.natives[number].short_of_space,
            self.loads[number])) if numbers else 0

    def is_cordoned(self, number: int) -> bool:
        """Return True if the directory gets no new replicas (KIP-1066)."""
        return self.paths[number] in self._settings.cordoned_log_dirs

    def fail(self, number: int, error: OSError) -> bool:
        """Report an I/O error of a file beside the logs. Return False for a shortage, which may
        end, so that the directory stays online.
        """
        native = self.natives[number]
        return native is not None and native.fail(error.errno or errno.EIO)

    def rename(self, number: int, name: str, goal: str) -> bool:
        """Rename a partition's directory, on disk. Return False if the disk failed or has a
        shortage.
        """
        return self._rename(number, name, goal) is None

    def rename_only_copy(self, number: int, name: str, goal: str) -> bool:
        """As rename(), at startup. Return False if the disk failed. Raises StartError for a
        shortage: otherwise the partition would be opened empty.
        """
        error = self._rename(number, name, goal)
        if error is not None and self.online(number):
            raise StartError(f"{os.path.join(self.paths[number], name)} cannot be renamed to "
                             f"{goal}: {error.strerror}; make room and start again") from error
        return error is None

    def _rename(self, number: int, name: str, goal: str) -> OSError | None:
        path = self.paths[number]
        try:
            os.rename(os.path.join(path, name), os.path.join(path, goal))
            checkpoint_files.sync_directory(path)
        except OSError as error:
            self.fail(number, error)
            return error
        return None

    def set_aside(self, number: int, name: str) -> None:
        """Rename a directory that belongs to no topic. Nothing is deleted."""
        topic, _, index = name.rpartition("-")
        if self.rename(number, name, directory_name(topic, index, "stray")):
            log.warning("a partition directory without a topic was set aside", extra={
                "directory": os.path.join(self.paths[number], name)})

    def newly_failed(self) -> list:
        """Return the numbers of directories that went offline since the last call."""
        found = [number for number in range(len(self.natives))
                 if not self.online(number) and number not in self._reported]
        for number in found:
            self._reported.add(number)
            _, name, call = self.natives[number].failure
            log.error("a log directory is offline", extra={
                "directory": self.paths[number], "reason": f"{call}: {name}"})
        return found

    def fatal(self) -> str | None:
        """Return why the broker cannot continue, in one line, or None if it can."""
        if not self.usable():
            return f"all log directories have failed: {', '.join(self.paths)}"
        if not self.online(0):
            return f"the log directory that holds the metadata has failed: {self.paths[0]}"
        return None

    def take_clean_marks(self, stored: list) -> frozenset:
        """Return the numbers of directories that this broker shut down cleanly: the marker in the
        directory is the one in `stored`, which write_clean_marks() returned. Removes the markers.
        """
        clean = set()
        for number, path in self.usable():
            try:
                found = list(checkpoint_files.clean_mark(path))
                checkpoint_files.remove_clean_mark(path)
                if found and number < len(stored) and stored[number] == found:
                    clean.add(number)
            except OSError as error:
                self.fail(number, error)
        return frozenset(clean)

    def write_clean_marks(self, numbers, broker_epoch: int) -> list:
        """Mark the directories as cleanly shut down. Store the result for take_clean_marks()."""
        marks: list = [[] for _ in self.paths]
        for number in numbers:
            try:
                marks[number] = list(
                    checkpoint_files.write_clean_mark(self.paths[number], broker_epoch))
            except OSError as error:
                self.fail(number, error)
                log.error("a directory could not be marked as cleanly stopped", extra={
                    "directory": self.paths[number], "reason": error.strerror})
        return marks

    def check_free_space(self) -> None:
        """Reject produce requests if the free space is below the reserve, and accept them again
        above it.

        Logs each change, and each shortage of space, descriptors or memory.
        """
        wanted = self._settings["log.dir.min.free.bytes"]
        for number, path in self.usable():
            native = self.natives[number]
            free, total = native.check_free_space()
            reserve = min(RESERVE_BYTES_MAX, total // RESERVE_PART) if wanted < 0 else wanted
            native.check_free_space(reserve)
            self._report_space(number, free, reserve)
            self._shortages.setdefault(number, Shortages(path)).report(native.stats(), free)

    def _report_space(self, number: int, free: int, reserve: int) -> None:
        # The native code also sets the flag when an append fails, so compare with the last log
        # line.
        details = {"directory": self.paths[number], "free_bytes": free, "threshold_bytes": reserve}
        if self.natives[number].short_of_space and number not in self._full:
            self._full.add(number)
            log.error("produce requests are rejected: the disk has less free space than "
                      "log.dir.min.free.bytes; delete data or lower retention", extra=details)
        elif number in self._full and not self.natives[number].short_of_space:
            self._full.remove(number)
            log.warning("produce requests are accepted again: the disk has free space",
                        extra=details)


class Shortages:
    """Logs when writes to a log directory begin to fail for a shortage, and when they succeed
    again: after QUIET_LOOKS reports without a shortage, and if a small file can be written.
    """

    def __init__(self, path: str):
        self._path = path
        self._seen = self._quiet = 0
        self._error = 0  # errno of the logged shortage, 0: none

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
    """Return the maximum number of open segments per directory."""
    if limits.descriptors() // 2 < limits.SEGMENT_FILES_LOW:
        log.warning("the limit of open files is low: segments are reopened often and connections "
                    "may be refused; raise it with ulimit -n",
                    extra={"limit": limits.descriptors()})
    return limits.segment_files(directories)


def locked(path: str) -> int:
    """Lock a file and return its descriptor, which holds the lock until it is closed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # flock() excludes another pylog broker, lockf() a Kafka broker, because Java uses POSIX
        # locks.
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
    """Raise OSError if the file exists but cannot be read."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except FileNotFoundError:
        return


def remove_tree(path: str) -> None:
    # Imported here: it adds 5 ms to startup, and few starts need it.
    import shutil

    shutil.rmtree(path, ignore_errors=True)
