"""Kafka's small text files in a log directory: offset checkpoints and the clean-shutdown mark.

Owns: recovery-point-offset-checkpoint, replication-offset-checkpoint, log-start-offset-checkpoint,
  .kafka_cleanshutdown.
Invariants: (1) a file is complete or absent: it is renamed into place after it is on disk.
Source: Kafka's files as seen on disk: version, count, then a line per partition.
"""

import contextlib
import errno
import json
import os

from pylog import supervisor

RECOVERY_POINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
DAMAGED = ".damaged"     # Appended to the name of a file that does not parse.
_VERSION = "0"


def write_offsets(path: str, offsets) -> None:
    """Writes [(topic, partition, offset)] as a checkpoint file."""
    lines = [f"{topic} {partition} {offset}\n" for topic, partition, offset in offsets]
    write_whole(path, f"{_VERSION}\n{len(lines)}\n{''.join(lines)}")


class DamagedError(ValueError):
    """A checkpoint file does not parse."""


def read_offsets(path: str) -> dict:
    """Return {(topic, partition): offset}; empty if the file is missing or damaged.

    Logs and counts a damaged file, and keeps it as `path` + ".damaged", so that an operator can
    read the rows that the next checkpoint does not restore. Raises OSError for a file that cannot
    be read: its rows must not be treated as removed.
    """
    try:
        return parse_offsets(path)
    except DamagedError:
        with contextlib.suppress(FileNotFoundError):     # Another thread has just renamed it.
            os.replace(path, path + DAMAGED)
        supervisor.report(
            "offset checkpoints", "An offset checkpoint is damaged and was renamed. The broker "
            "uses the offsets of its metadata store. If that is lost too, call DeleteRecords "
            "again for the topics whose records you deleted.", path=path,
            renamed_to=path + DAMAGED)
        return {}


def parse_offsets(path: str) -> dict:
    """Return the rows of read_offsets() without changing the file. Raises DamagedError, OSError."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        if lines[0] != _VERSION or int(lines[1]) != len(lines) - 2:
            raise DamagedError("the version or the number of rows is wrong")
        offsets = {}
        for line in lines[2:]:
            topic, partition, offset = line.split(" ")
            offsets[(topic, int(partition))] = int(offset)
        return offsets
    except FileNotFoundError:
        return {}
    except (ValueError, IndexError) as error:
        raise DamagedError(f"{path}: {error}") from error


def write_clean_mark(directory: str, broker_epoch: int) -> tuple:
    """Marks the directory as cleanly stopped. Returns what identifies this mark."""
    path = os.path.join(directory, CLEAN_SHUTDOWN)
    write_whole(path, json.dumps({"version": 0, "brokerEpoch": broker_epoch}))
    return clean_mark(directory)


def clean_mark(directory: str) -> tuple:
    """(inode, modification time in ns) of the directory's mark; () when there is none."""
    try:
        state = os.stat(os.path.join(directory, CLEAN_SHUTDOWN))
    except FileNotFoundError:
        return ()
    return state.st_ino, state.st_mtime_ns


def clean_epoch(directory: str) -> int:
    """The broker epoch in the directory's mark; -1 when there is none."""
    try:
        with open(os.path.join(directory, CLEAN_SHUTDOWN), encoding="utf-8") as file:
            return int(json.load(file)["brokerEpoch"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return -1


def remove_clean_mark(directory: str) -> None:
    """Must be on disk before anything is appended: else a crash would look like a clean stop."""
    try:
        os.unlink(os.path.join(directory, CLEAN_SHUTDOWN))
    except FileNotFoundError:
        return
    sync_directory(directory)


def write_whole(path: str, text: str) -> None:
    """Writes a small text file atomically: complete or absent."""
    with whole_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def whole_file(path: str):
    """A binary file to write in the block: at its end it is complete and on disk under `path`, or
    absent, and then nothing is left of it: a full disk must not be the fuller for it."""
    scratch = path + ".tmp"
    try:
        with open(scratch, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
    sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Brings a directory's entries to disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def make_directory(path: str) -> None:
    """Makes a directory where there is none, and brings its name to disk, and the names of those it
    lies in: a start before this one may have made them, and been killed."""
    os.makedirs(path, exist_ok=True)
    child = os.path.realpath(path)
    while (parent := os.path.dirname(child)) != child:
        try:
            if os.stat(parent).st_dev != os.stat(child).st_dev:
                return
            sync_directory(parent)
        except OSError as error:
            # Not ours to read, or on a file system that syncs no directories.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL):
                raise
        child = parent
