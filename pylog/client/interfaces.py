"""The types that applications pass to clients: serializers, callbacks, column names, times.

Owns: nothing.
Invariants: clients import this module only for type checkers, because it imports datetime.
Source: Kafka's Serializer and Deserializer, for their names and arguments.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar, Union

TYPE_CHECKING = False  # Keeps imports lazy.
if TYPE_CHECKING:
    import pyarrow as pa

    from pylog.client.errors import KafkaError
    from pylog.client.types import OffsetAndMetadata, RecordMetadata, TopicPartition

A = TypeVar("A")
Written = TypeVar("Written", contravariant=True)
Read = TypeVar("Read", covariant=True)

Raw = bytes | bytearray | memoryview | str
ColumnName = Literal["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
ShareColumnName = Literal["topic", "partition", "offset", "timestamp", "key", "value", "headers",
                      "delivery_count"]
Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
Time = int | float | str | datetime.datetime | datetime.date | datetime.timedelta | None
DeliveryCallback = Callable[[Union["RecordMetadata", None], Union["KafkaError", None]], object]
RebalanceCallback = Callable[[list["TopicPartition"]], object]
CommitCallback = Callable[
    [Mapping["TopicPartition", "OffsetAndMetadata"], Union["KafkaError", None]], object]
PartitionChooser = Callable[[str, bytes | None, Sequence[int], Sequence[int]], int]
StatisticsCallback = Callable[[dict[str, dict[str, float]]], object]
TokenCallback = Callable[[str], str | tuple[str, float]]



class ArrowStream(Protocol):
    """Data with the Arrow C stream interface: a pyarrow Table, a Polars or DuckDB table."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """A column with the Arrow C data interface, such as a pyarrow Array."""

    def __arrow_c_array__(self, requested_schema: object | None = None
                          ) -> tuple[object, object]: ...


ArrowData = Union[ArrowStream, "pa.RecordBatch", "pa.RecordBatchReader"]
# The name of a column of the data, or values.
ArrowColumn = str | ArrowArray | ArrowStream | Sequence[object]


class Serializer(Protocol[Written]):
    """Converts keys or values to bytes."""

    def serialize(self, topic: str, value: Written, /) -> bytes:
        """Return the bytes of a key or value for a topic. An exception fails the send."""


class Deserializer(Protocol[Read]):
    """Converts bytes to keys or values."""

    def deserialize(self, data: bytes, /) -> Read:
        """Return the key or value. An exception becomes a RecordDeserializationError."""


# A function is accepted in place of an object.
Serializes = Serializer[A] | Callable[[A], bytes]
Deserializes = Deserializer[A] | Callable[[bytes], A]
