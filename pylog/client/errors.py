"""The client's exceptions: one class for each of Kafka's error codes, and those of the client.

Owns: the classes made from the protocol's table.
Invariants: (1) each row of the table has exactly one class, made when it is first asked for, named
  as Kafka's: NOT_LEADER_OR_FOLLOWER is NotLeaderOrFollowerError; (2) `retriable` says that the same
  request may succeed later, `fatal` that this client object cannot go on; never both.
Source: protocol/errors.py; what is fatal follows Kafka's Java client.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pylog.protocol.counts import counted
from pylog.protocol.errors import TABLE, Error, ErrorCode


class KafkaError(Exception):
    """Root of the tree. `code` is Kafka's error code, -1 where there is none.

    results: when one call was about several things, what became of each, by name.
    """

    results: Any = None

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    # The cached metadata may be what is wrong: ask again before the next try.
    stale_metadata: ClassVar[bool] = False


class RetriableError(KafkaError):
    """May succeed when it is tried again."""

    retriable = True


class InvalidMetadataError(RetriableError):
    """May succeed when it is tried again with fresh metadata."""

    stale_metadata = True


class FatalError(KafkaError):
    """The client object is of no more use and has to be closed."""

    fatal = True


class AuthorizationError(KafkaError):
    """The broker knows who asks, and refuses."""


class BrokerError(KafkaError):
    """Root of what a broker answers that is neither retriable nor fatal."""


class ConfigError(KafkaError, ValueError):
    """A setting's name or value is not allowed."""


class ClosedError(KafkaError):
    """The client object was closed."""


class ForkedError(ClosedError):
    """The client object was made before the process forked: its thread is not in the child."""

    def __init__(self) -> None:
        super().__init__("used after fork: make clients in the process that uses them")


class LostRecords(KafkaError):
    """Records that were sent and not acknowledged. `count`: how many."""

    def __init__(self, count: int):
        super().__init__(f"{counted(count, 'record')} not acknowledged: what each failed with is "
                         "in its delivery, and in on_delivery")
        self.count = count

    @classmethod
    def checked(cls, count: int, check: bool) -> int:
        """The count; raises when it is to be checked and is not 0."""
        if check and count:
            raise cls(count)
        return count


class IllegalStateError(KafkaError):
    """The call does not fit what was called before."""


class ConcurrentUseError(IllegalStateError):
    """Another thread, or with asyncio another task, is using the consumer."""


class KafkaTimeoutError(RetriableError, TimeoutError):
    """The time given to a call ran out."""


class KafkaConnectionError(InvalidMetadataError, OSError):
    """A broker could not be reached, or the connection ended before the answer came."""


class NoBrokersError(KafkaConnectionError):
    """None of the bootstrap servers could be reached."""


class UnsupportedByBrokerError(KafkaError):
    """The broker serves no version of the request that says what was asked."""


class AuthenticationError(FatalError):
    """The broker did not accept the credentials or certificates."""


class WakeupError(KafkaError):
    """`wakeup` was called while another thread polled."""


class CommitFailedError(KafkaError):
    """The group has gone on without this member: its partitions belong to others by now."""


class RebalanceNeededError(RetriableError):
    """The group rebalances: poll, then commit again."""


class NoOffsetForPartitionError(KafkaError):
    """A partition has neither a committed offset nor a way of resetting it."""


class LogTruncationError(KafkaError):
    """A new leader's log ends before the position of who has auto.offset.reset=none: seek to go on.

    partition; offset: where that log and the one that was read part.
    """

    partition: Any = None
    offset: int | None = None


class SerializationError(KafkaError):
    """A key or value could not be turned into bytes, or bytes into a key or value.

    partition, offset: of the record that could not be read, where it is one.
    """

    partition: Any = None
    offset: int | None = None


class RecordDeserializationError(SerializationError, ValueError):
    """A record could not be deserialized. The position stays at it: seek past it to go on.

    partition: its TopicPartition; offset: its offset.
    """

    @classmethod
    def at(cls, partition: Any, offset: int, reason: object,
           remedy: str = "seek past it to go on") -> RecordDeserializationError:
        """Of the record at this offset of a TopicPartition."""
        made = cls(f"{partition}, offset {offset}: {reason}; {remedy}")
        made.partition, made.offset = partition, offset
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
    """NOT_COORDINATOR -> NotCoordinatorError, INVALID_TOPIC_EXCEPTION -> InvalidTopicError."""
    stem = row.name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return "".join([word.capitalize() for word in stem.split("_")]) + "Error"


_codes = {class_name(row): code for code, row in TABLE.items() if code}


def error_class(code: int) -> type[KafkaError]:
    """The class of an error code; a code that Kafka 4.3 does not have is an unknown one."""
    found = _by_code.get(code)
    if found is None:
        row = TABLE.get(code) or TABLE[-1]
        found = _by_code.get(int(row)) or _make(row)
        _by_code[int(row)] = _by_code[code] = found  # Keeps (1).
    return found


def error(code: int, message: str | None = None, context: str = "") -> KafkaError:
    """An exception for a code. message: the broker's own words; context: what was asked for."""
    cls = error_class(code)
    text = message or (TABLE.get(code) or TABLE[-1]).message
    return cls(f"{context}: {text}" if context else text)


def raise_for(code: int, message: str | None = None, context: str = "") -> None:
    """Raises the exception of a code that is not 0."""
    if code:
        raise error(code, message, context)


def raise_among(results: dict[Any, Any]) -> None:
    """Raises the first KafkaError of several results, with all of them; what will not pass before
    what may."""
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
