"""Exceptions of logs.

Owns: nothing.
Invariants: `code` is Kafka's error code for the failure.
"""


class LogError(Exception):
    """A failed operation. `error`: csrc's log_error or batch_error; `code`: Kafka's code."""

    def __init__(self, error: int, code: int, text: str):
        super().__init__(text)
        self.error = error
        self.code = code


class StorageError(LogError):
    """The disk failed, its directory is offline, or it is full."""


class Shortage(StorageError):
    """Disk space, descriptors or memory are short: nothing has failed, and a retry may succeed."""


class OffsetOutOfRange(LogError):
    """The offset is below the log's start or above its end."""


class SequenceError(LogError):
    """The producer state rejects the batch: out of order, or from an older epoch."""


class NotLeader(LogError):
    """Appends require the leader with the given epoch."""


class LogDeleted(LogError):
    """The log was deleted."""


class CorruptLog(LogError):
    """Files that cannot be used: corrupt below the recovery point, or of another topic id."""


class BatchRefused(LogError):
    """The batch violates the topic's rules."""
