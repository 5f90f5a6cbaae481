"""Decodes the keys and values of rows: by schemas, as MessagePack, or as internal records.

Owns: nothing.
Invariants: bytes are decoded only in a way that they name themselves or that the user chose;
  a failure is a text beside the bytes, and never ends the page.
Source: Confluent's wire format; its headers __key_schema_id and __value_schema_id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pylog._native.client.columns import Columns
from pylog._native.client.search import Test
from pylog.client.columns.rows import Row
from pylog.client.errors import SerializationError
from pylog.client.serialization.avro import HEAD, MAGIC
from pylog.client.serialization.protobuf import message_indexes
from pylog.console.values import internal_topics
from pylog.console.values.column_formats import AUTO, KEY, MESSAGE_PACK, SCHEMA, VALUE, ColumnFormat
from pylog.console.values.decoder_process import DECODE, DecoderProcess, Job
from pylog.console.values.schema_formats import NAMES, PROTOBUF, Bundle
from pylog.console.values.schemas import Key, SchemaError, Schemas

SCHEMA_HEADERS = {KEY: "__key_schema_id", VALUE: "__value_schema_id"}
GUID_MAGIC, GUID_BYTES = 1, 16
NO_REGISTRY = "the console has no schema registry: set console.schema.registry.url"


class Decoded(NamedTuple):
    """text: JSON, None if the bytes could not be decoded. name: of the format. error: why not."""

    text: str | None
    name: str
    error: str = ""


class _Frame(NamedTuple):
    """A value with the schema that it names. data: the bytes after that name."""

    schema: Key
    data: bytes
    indexes: bytes | None  # Bytes that begin with Protobuf's message indexes; None: in data.


class RowDecoder:
    """Decodes the rows of one topic. Methods block: call them on a thread."""

    def __init__(self, topic: str, formats: Mapping[str, ColumnFormat], schemas: Schemas | None,
                 process: DecoderProcess):
        self._topic = topic
        self._formats = formats
        self._schemas = schemas
        self._process = process

    def candidates(self, part: Literal["key", "value"], group: int) -> list[Test]:
        """Return native tests for records whose bytes must be decoded before they are compared."""
        name = self._formats[part].name
        if internal_topics.is_internal(self._topic) and name == AUTO or name == MESSAGE_PACK \
                or self._formats[part].schema_id:
            return [Test(group, part, "exists")]
        if self._schemas is None or name not in (AUTO, SCHEMA):
            return []
        return [Test(group, part, "prefix", bytes([MAGIC])),
                Test(group, "header", "exists", name=SCHEMA_HEADERS[part].encode())]

    def may_decode(self, row: Row) -> bool:
        """Return True if the key or the value may need to be decoded."""
        return any(data is not None and (
            data[:1] == b"\0" or self._formats[part].name in (SCHEMA, MESSAGE_PACK)
            or internal_topics.is_internal(self._topic)
            or any(name == SCHEMA_HEADERS[part] for name, _ in row.headers))
            for part, data in ((KEY, row.key), (VALUE, row.value)))

    def may_decode_any(self, columns: Columns) -> bool:
        """Return True if a key or value of some columns may need to be decoded, with formats that
        are all guessed. Looks at their first bytes and at the names of headers only.
        """
        if internal_topics.is_internal(self._topic):
            return True
        if self._schemas is None:
            return False
        if columns.header_key_data is not None:
            names = bytes(memoryview(columns.header_key_data))
            if any(name.encode() in names for name in SCHEMA_HEADERS.values()):
                return True
        for offsets, data in ((columns.key_offsets, columns.key_data),
                              (columns.value_offsets, columns.value_data)):
            content = memoryview(data)
            starts = memoryview(offsets).cast("i").tolist()
            if any(start < stop and content[start] == MAGIC
                   for start, stop in zip(starts, starts[1:])):
                return True
        return False

    def decode(self, rows: Sequence[Row]) -> list[dict[str, Decoded]]:
        """Return the decoded parts of each row: those that are decoded, or should be."""
        found: list[dict[str, Decoded]] = [{} for _ in rows]
        jobs: list[Job] = []
        places: list[tuple[int, str, str]] = []  # Row, part and name of each job.
        bundles: dict[Any, Bundle] = {}
        for number, row in enumerate(rows):
            for part, data in ((KEY, row.key), (VALUE, row.value)):
                if data is None:
                    continue
                try:
                    made = self._job(part, row, data, bundles)
                except (SchemaError, SerializationError) as failure:
                    found[number][part] = Decoded(None, "", str(failure))
                    continue
                if isinstance(made, Decoded):
                    found[number][part] = made
                elif made is not None:
                    jobs.append(made[0])
                    places.append((number, part, made[1]))
        for (number, part, name), result in zip(places, self._process.run(jobs, bundles)
                                                if jobs else ()):
            found[number][part] = Decoded(
                None if result.data is None else result.data.decode(), name, result.error)
        return found

    def _job(self, part: str, row: Row, data: bytes, bundles: dict[Any, Bundle]
             ) -> tuple[Job, str] | Decoded | None:
        """Return (job, name of the format), a result, or None for bytes that stay as they are.
        Raises SchemaError, SerializationError.
        """
        form = self._formats[part]
        if form.is_plain:
            return None
        if form.name == MESSAGE_PACK:
            return (DECODE, MESSAGE_PACK, data, ()), "MessagePack"
        if form.name == AUTO and internal_topics.is_internal(self._topic):
            return self._internal(part, row, data)
        if self._schemas is None:
            if form.name == SCHEMA:
                raise SchemaError(NO_REGISTRY)
            return None
        frame = _frame(part, row, data, form.schema_id)
        if frame is None:
            if form.name == SCHEMA:
                raise SerializationError("it names no schema. Enter the id of its schema")
            return None
        try:
            bundle = self._schemas.bundle(frame.schema)
        except SchemaError as failure:
            if form.name == AUTO and failure.is_missing:
                return None  # The bytes only look like an id, such as those of a number.
            raise
        bundles[frame.schema] = bundle
        name = f"{NAMES.get(bundle.schema.kind, bundle.schema.kind)}, schema {frame.schema}"
        content = frame.data
        indexes: tuple[int, ...] = ()
        if bundle.schema.kind == PROTOBUF and not form.schema_id:
            source = content if frame.indexes is None else frame.indexes
            try:
                indexes, after = message_indexes(source, 0)
            except SerializationError as failure:
                return Decoded(None, name, str(failure))
            content = content[after:] if frame.indexes is None else content
        return (DECODE, frame.schema, content, indexes), name

    def _internal(self, part: str, row: Row, data: bytes) -> Decoded:
        try:
            return Decoded(*(internal_topics.key_of(self._topic, data) if part == KEY
                             else internal_topics.value_of(self._topic, row.key, data)))
        except ValueError as failure:
            return Decoded(None, "", str(failure))


def framed_schema(data: bytes) -> int:
    """Return the id of the schema that bytes name at their start; 0: they name none."""
    if len(data) >= HEAD.size and data[0] == MAGIC:
        number: int = HEAD.unpack_from(data)[1]
        return max(0, number)
    return 0


def _frame(part: str, row: Row, data: bytes, schema_id: int) -> _Frame | None:
    """Return the schema that a value names, or that the user chose. Raises SerializationError."""
    if schema_id:
        return _Frame(schema_id, data, None)
    wanted = SCHEMA_HEADERS[part]
    given = next((content for name, content in row.headers if name == wanted), None)
    if given:
        if given[0] == GUID_MAGIC and len(given) > GUID_BYTES:
            guid = str(uuid.UUID(bytes=given[1:GUID_BYTES + 1]))
            return _Frame(guid, data, given[GUID_BYTES + 1:])
        if given[0] == MAGIC and len(given) >= HEAD.size:
            return _Frame(HEAD.unpack_from(given)[1], data, given[HEAD.size:])
        raise SerializationError(f"the header {wanted} has no id of a schema")
    number = framed_schema(data)
    return _Frame(number, data[HEAD.size:], None) if number else None
