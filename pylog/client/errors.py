"""The client's exceptions: a class for each of Kafka's error codes, and the client's own.

Owns: the classes generated from the protocol's error table.
Invariants: each row of the table has exactly one class, created on first use and named like
  Kafka's: NOT_LEADER_OR_FOLLOWER is NotLeaderOrFollowerError; `retriable` means that the same
  request may succeed later, `fatal` that this client object cannot continue; never both.
Source: protocol/errors.py; fatal errors are those of Kafka's Java client.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pylog.protocol.counts import counted
from pylog.protocol.errors import TABLE, Error, ErrorCode


class KafkaError(Exception):
    """Base class. `code` is Kafka's error code, or -1.

    remedy: what to do, or "" if the client cannot say; the message ends with it. results: if a call
    covered several items, the outcome of each by name.
    """

    remedy: str = ""
    results: Any = None

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    # The cached metadata may be outdated: refresh it before retrying.
    stale_metadata: ClassVar[bool] = False

    def __init__(self, *args: object, remedy: str = "") -> None:
        """args: the message, to which the remedy is added."""
        if remedy:
            args = (f"{args[0]}: {remedy}", *args[1:])
            self.remedy = remedy
        super().__init__(*args)


class RetriableError(KafkaError):
    """May succeed if retried."""

    retriable = True


class InvalidMetadataError(RetriableError):
    """May succeed if retried with fresh metadata."""

    stale_metadata = True


class FatalError(KafkaError):
    """The client object is unusable; close it."""

    fatal = True


class AuthorizationError(KafkaError):
    """The authenticated user lacks permission."""


class BrokerError(KafkaError):
    """Base class of broker errors that are neither retriable nor fatal."""


class ConfigError(KafkaError, ValueError):
    """A setting's name or value is not allowed."""


class ClosedError(KafkaError):
    """The client object was closed."""


class ForkedError(ClosedError):
    """The client object was created before the process forked: the child does not have its thread.
    """

    def __init__(self) -> None:
        super().__init__("used after fork",
                         remedy="make clients in the process that uses them")


class ProgramEndedError(ClosedError):
    """The interpreter is shutting down, or the clients' event loop has ended."""

    def __init__(self) -> None:
        super().__init__("the program is ending and its clients' event loop has stopped",
                         remedy="finish client calls before the program ends, or in an atexit "
                         "handler")


class MissingExtraError(KafkaError, ModuleNotFoundError):
    """A library that an optional extra of the package contains is not installed.

    extra: its name, as in `pip install 'pylog-broker[arrow]'`.
    """

    def __init__(self, caller: str, library: str, extra: str):
        super().__init__(f"{caller} needs {library}, which is not installed",
                         remedy=f"run pip install 'pylog-broker[{extra}]'")
        self.extra = extra


class LostRecords(KafkaError):
    """Records that were sent and not acknowledged. `count`: number of records."""

    def __init__(self, count: int):
        super().__init__(f"{counted(count, 'record')} not acknowledged: what each failed with is "
                         "in its delivery, and in on_delivery")
        self.count = count

    @classmethod
    def checked(cls, count: int, check: bool) -> int:
        """Return the count. Raises LostRecords if `check` is set and it is not 0."""
        if check and count:
            raise cls(count)
        return count


class IllegalStateError(KafkaError):
    """The call is not allowed in the object's current state."""


class ConcurrentUseError(IllegalStateError):
    """Another thread, or with asyncio another task, is using the consumer."""


class KafkaTimeoutError(RetriableError, TimeoutError):
    """A call's timeout has expired."""


class KafkaConnectionError(InvalidMetadataError, OSError):
    """A broker could not be reached, or the connection closed before the response arrived."""


class NoBrokersError(KafkaConnectionError):
    """No bootstrap server could be reached."""


class UnsupportedByBrokerError(KafkaError):
    """The broker supports no version of the request that can express these arguments."""


class AuthenticationError(FatalError):
    """The broker rejected the credentials or certificates."""


class WakeupError(KafkaError):
    """`wakeup` was called during a poll."""


class CommitFailedError(KafkaError):
    """The group has rebalanced without this member: its partitions have other owners."""


class RebalanceNeededError(RetriableError):
    """The group is rebalancing: poll, then commit again."""


class NoOffsetForPartitionError(KafkaError):
    """A partition has no committed offset, and auto.offset.reset is none."""


class LogTruncationError(KafkaError):
    """The new leader's log ends before the position, and auto.offset.reset is none: seek to
    continue.

    partition; offset: where the logs diverge.
    """

    partition: Any = None
    offset: int | None = None


class SerializationError(KafkaError):
    """A key or value could not be serialized or deserialized.

    partition, offset: of the record, if it was being deserialized.
    """

    partition: Any = None
    offset: int | None = None


class RecordDeserializationError(SerializationError, ValueError):
    """A record could not be deserialized. The position does not change: seek past it to continue.

    partition: its TopicPartition; offset: its offset.
    """

    @classmethod
    def at(cls, partition: Any, offset: int, reason: object,
           remedy: str = "seek past it to continue") -> RecordDeserializationError:
        """Return the error for a record of a TopicPartition."""
        made = cls(f"{partition}, offset {offset}: {reason}; {remedy}")
        made.partition, made.offset, made.remedy = partition, offset, remedy
        return made


class BufferFullError(RetriableError):
    """The producer's buffer stayed full for longer than max.block.ms."""


_STALE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LISTENER_NOT_FOUND, ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.NOT_CONTROLLER, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
}
_FATAL = {
    ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.ILLEGAL_SASL_STATE,
    ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.UNSUPPORTED_VERSION,
}
_AUTHORIZATION = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
_SUFFIXES = ("_EXCEPTION", "_ERROR")

_by_code: dict[int, type[KafkaError]] = {}


def class_name(row: Error) -> str:
    """Return the class name: NOT_COORDINATOR -> NotCoordinatorError, INVALID_TOPIC_EXCEPTION ->
    InvalidTopicError.
    """
    stem = row.name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return "".join([word.capitalize() for word in stem.split("_")]) + "Error"


_codes = {class_name(row): code for code, row in TABLE.items() if code}


def error_class(code: int) -> type[KafkaError]:
    """Return the class for an error code; codes unknown to Kafka 4.4 map to UNKNOWN_SERVER_ERROR.
    """
    found = _by_code.get(code)
    if found is None:
        row = TABLE.get(code) or TABLE[-1]
        found = _by_code.get(int(row)) or _make(row)
        _by_code[int(row)] = _by_code[code] = found  # Each row has exactly one class.
    return found


def error(code: int, message: str | None = None, context: str = "") -> KafkaError:
    """Return an exception for a code. message: from the broker; context: subject of the request."""
    cls = error_class(code)
    text = message or (TABLE.get(code) or TABLE[-1]).message
    return cls(f"{context}: {text}" if context else text)


def raise_for(code: int, message: str | None = None, context: str = "") -> None:
    """Raise the exception of an error code that is not 0."""
    if code:
        raise error(code, message, context)


def raise_among(results: dict[Any, Any]) -> None:
    """Raise the first KafkaError among results, permanent errors first, with all `results`."""
    failures = [result for result in results.values() if isinstance(result, KafkaError)]
    if failures:
        failure = min(failures, key=lambda one: one.retriable)
        failure.results = results
        raise failure


def _make(row: Error) -> type[KafkaError]:
    if row in _AUTHORIZATION:
        parent: type[KafkaError] = AuthorizationError
    elif row in _FATAL:
        parent = FatalError
    elif row in _STALE:
        parent = InvalidMetadataError
    else:
        parent = RetriableError if row.retriable else BrokerError
    made: type[KafkaError] = type(class_name(row), (parent,), {
        "__doc__": row.message, "__module__": __name__, "code": int(row),
    })
    return made


def __getattr__(name: str) -> Any:
    code = _codes.get(name)
    if code is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return error_class(code)


def __dir__() -> list[str]:
    return sorted([*globals(), *_codes])
