"""What a log raises.

Owns: nothing.
Invariants: `code` is Kafka's error code for what happened.
"""


class LogError(Exception):
    """What ended an operation. `error`: csrc's log_error or batch_error; `code`: Kafka's code."""

    def __init__(self, error: int, code: int, text: str):
        super().__init__(text)
        self.error = error
        self.code = code


class StorageError(LogError):
    """The disk failed, its directory is offline, or it is full."""


class Shortage(StorageError):
    """Room, descriptors or memory are short: nothing failed, and a later try may go well."""


class OffsetOutOfRange(LogError):
    """The offset is below the log's start or above its end."""


class SequenceError(LogError):
    """Producer state refuses the batch: out of order, or of an older epoch."""


class NotLeader(LogError):
    """Appends need the leader, of the epoch that was named."""


class LogDeleted(LogError):
    """The log was deleted."""


class CorruptLog(LogError):
    """Files below the recovery point, or of another topic id, that cannot be served."""


class BatchRefused(LogError):
    """The batch does not obey the topic's rules."""
