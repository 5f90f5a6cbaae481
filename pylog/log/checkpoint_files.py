"""Kafka's small text files in a log directory: offset checkpoints and the clean-shutdown marker.

Owns: recovery-point-offset-checkpoint, replication-offset-checkpoint, log-start-offset-checkpoint,
  .kafka_cleanshutdown.
Invariants: a file is complete or absent, because it is renamed into place after its content is on
  disk.
Source: Kafka's files as seen on disk: version, count, then one line per partition.
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
DAMAGED = ".damaged"  # Suffix of a file that could not be parsed.
_VERSION = "0"


def write_offsets(path: str, offsets) -> None:
    """Write [(topic, partition, offset)] as a checkpoint file."""
    lines = [f"{topic} {partition} {offset}\n" for topic, partition, offset in offsets]
    write_whole(path, f"{_VERSION}\n{len(lines)}\n{''.join(lines)}")


class DamagedError(ValueError):
    """A checkpoint file could not be parsed."""


def read_offsets(path: str) -> dict:
    """Return {(topic, partition): offset}; empty if the file is missing or damaged.

    Logs and counts a damaged file, and keeps it as `path` + ".damaged", so that an operator can
    read the rows that the next checkpoint does not restore. Raises OSError if the file cannot be
    read: its rows must not be treated as removed.
    """
    try:
        return parse_offsets(path)
    except DamagedError:
        with contextlib.suppress(FileNotFoundError):  # Another thread has just renamed it.
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
    """Write the clean-shutdown marker. Return the marker's identity, see clean_mark()."""
    path = os.path.join(directory, CLEAN_SHUTDOWN)
    write_whole(path, json.dumps({"version": 0, "brokerEpoch": broker_epoch}))
    return clean_mark(directory)


def clean_mark(directory: str) -> tuple:
    """Return the marker's identity: (inode, modification time in ns); () if there is no marker."""
    try:
        state = os.stat(os.path.join(directory, CLEAN_SHUTDOWN))
    except FileNotFoundError:
        return ()
    return state.st_ino, state.st_mtime_ns


def clean_epoch(directory: str) -> int:
    """Return the broker epoch in the marker, -1 if there is no marker."""
    try:
        with open(os.path.join(directory, CLEAN_SHUTDOWN), encoding="utf-8") as file:
            return int(json.load(file)["brokerEpoch"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return -1


def remove_clean_mark(directory: str) -> None:
    """Remove the marker, on disk. Call this before the first append: otherwise a crash would look
    like a clean shutdown.
    """
    try:
        os.unlink(os.path.join(directory, CLEAN_SHUTDOWN))
    except FileNotFoundError:
        return
    sync_directory(directory)


def write_whole(path: str, text: str) -> None:
    """Write a small text file atomically: complete or absent."""
    with whole_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def whole_file(path: str):
    """Open a binary file for writing. When the block ends, the file is complete and on disk under
    `path`. If it fails, no temporary file remains, because that would fill a full disk further.
    """
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
    """Flush a directory's entries to disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def free_name(path: str) -> str:
    """Return `path`, with a number appended if that name exists."""
    name, number = path, 1
    while os.path.lexists(name):
        number += 1
        name = f"{path}.{number}"
    return name


def make_directory(path: str) -> None:
    """Create a directory if it is missing, and flush its name and its parents' names to disk: an
    earlier start may have created them and been killed before the flush.
    """
    os.makedirs(path, exist_ok=True)
    child = os.path.realpath(path)
    while (parent := os.path.dirname(child)) != child:
        try:
            if os.stat(parent).st_dev != os.stat(child).st_dev:
                return
            sync_directory(parent)
        except OSError as error:
            # No permission, or the file system does not support fsync on directories.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL):
                raise
        child = parent
