"""Decode the keys and values of a batch to the columns of a schema.

Owns: the registry's responses, for one task.
Invariants: row i of the result is row i of the input; null stays null and is never an error; a
  value that cannot be decoded is an error with its offset, or null with the original bytes kept; an
  unreachable registry is always an error.
Source: Confluent's wire format; Kafka's own serializers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pylog.client.errors import ConfigError, SerializationError
from pylog.client.spark.formats import (
    AVRO, BINARY, JSON, NUMBERS, SIDES, STRING, Format, Formats, corrupt,
)

IDS_UNKNOWN_MAX = 1000
_NOT_FOUND = 404


def decoders(formats: Formats, shape: Any, own: set[str]) -> list[Decoder]:
    """Return a decoder for each side that fills a column of the Arrow schema `shape`.

    own: Kafka's columns, which the fields of a value must not replace.
    """
    made = []
    for side in SIDES:
        if formats.of(side).name != BINARY:
            decoder = Decoder(side, formats, shape, own)
            if decoder.fills:
                made.append(decoder)
    return made


class Decoder:
    """The decoder of keys or values. fills: the names of the columns that it produces."""

    def __init__(self, side: str, formats: Formats, shape: Any, own: set[str]):
        import pyarrow as pa

        self.side = side
        self._corrupt = corrupt(side) if corrupt(side) in shape.names else ""
        self._permissive = formats.permissive
        others = own | {corrupt(side) for side in SIDES}
        self._fields = [field for field in shape if field.name not in others] if (
            formats.expand and side == "value") else []
        self.fills = [field.name for field in self._fields]
        if side in shape.names:
            self.fills.append(side)
        kind = shape.field(side).type if side in shape.names else pa.struct(self._fields)
        if self._corrupt:
            self.fills.append(self._corrupt)
        self._kind = kind
        self._decode = _way(side, formats, kind)

    def columns(self, raw: Any, place: Callable[[int], str]) -> dict[str, Any]:
        """Decode to columns by name. raw: the binary Array. place: describes a row's position.
        Raises SerializationError.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        wrong: list[int] = []
        try:
            made = self._decode(raw)
        except SerializationError:
            if not self._permissive:
                row = self._first_undecodable(raw)
                self._raise_at(raw, row, place)
            parts: list[Any] = []
            self._salvage(raw, 0, parts, wrong)
            made = pa.concat_arrays(parts)
        found = {field.name: column for field, column in zip(
            self._fields, made.flatten() if self._fields else [])}
        if self.side in self.fills:
            found[self.side] = made
        if self._corrupt:
            mask = [False] * len(raw)
            for row in wrong:
                mask[row] = True
            found[self._corrupt] = pc.if_else(pa.array(mask, pa.bool_()), raw,
                                              pa.scalar(None, raw.type))
        return found

    def _raise_at(self, raw: Any, row: int, place: Callable[[int], str]) -> None:
        try:
            self._decode(raw.slice(row, 1))
        except SerializationError as wrong:
            raise SerializationError(
                f"{place(row)}: the {self.side} cannot be decoded: {wrong}. mode=permissive "
                f"returns null and adds the column {corrupt(self.side)}") from wrong
        raise SerializationError(f"{place(row)}: the {self.side} cannot be decoded")

    def _first_undecodable(self, raw: Any) -> int:
        low, high = 0, len(raw)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._decode(raw.slice(low, middle - low))
            except SerializationError:
                high = middle
            else:
                low = middle
        return low

    def _salvage(self, raw: Any, start: int, parts: list[Any], wrong: list[int]) -> None:
        """Bisect until each undecodable value is isolated."""
        import pyarrow as pa

        try:
            parts.append(self._decode(raw))
        except SerializationError:
            if len(raw) == 1:
                wrong.append(start)
                parts.append(pa.nulls(1, self._kind))
                return
            middle = len(raw) // 2
            self._salvage(raw.slice(0, middle), start, parts, wrong)
            self._salvage(raw.slice(middle), start + middle, parts, wrong)


def _way(side: str, formats: Formats, kind: Any) -> Callable[[Any], Any]:
    form = formats.of(side)
    if form.name == STRING:
        return _texts
    if form.name in NUMBERS:
        return _Numbers(form.name, kind)
    if form.name == JSON:
        return _Objects(side, kind)
    assert form.name == AVRO, form
    return _Records(side, formats, form, kind)


def _texts(raw: Any) -> Any:
    import pyarrow as pa

    try:
        return raw.cast(pa.utf8())
    except pa.ArrowInvalid as wrong:
        raise SerializationError(str(wrong)) from wrong


class _Numbers:
    """Decoder for big-endian numbers of fixed width."""

    def __init__(self, name: str, kind: Any):
        self._code, self._kind = f">{NUMBERS[name][0]}", kind

    def __call__(self, raw: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        from pylog.client.columns.fixed_width import numbers

        try:
            made = pa.array(numbers(raw, self._code), self._kind)
        except ValueError as wrong:
            raise SerializationError(str(wrong)) from wrong
        return pc.if_else(raw.is_valid(), made, pa.scalar(None, self._kind)) if (
            raw.null_count) else made


class _Objects:
    """Decoder for JSON objects, which Arrow reads as structs."""

    def __init__(self, side: str, kind: Any):
        import pyarrow as pa

        self._kind = kind
        self._schema = pa.schema([(field.name, _in_json(side, field.name, field.type))
                                  for field in kind])

    def __call__(self, raw: Any) -> Any:
        import pyarrow as pa

        from pylog.client.serialization.jsonvalues import json_column

        try:
            return json_column(raw, self._schema).cast(self._kind)
        except pa.ArrowInvalid as wrong:
            raise SerializationError(str(wrong)) from wrong


def _in_json(side: str, name: str, kind: Any) -> Any:
    """Return the type in which Arrow's JSON reader parses a column before the cast. Raises
    ConfigError.
    """
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _in_json(side, f"{name}.{field.name}", field.type))
                          for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_in_json(side, name, kind.value_type))
    if pa.types.is_date(kind):
        return pa.timestamp("s")
    if pa.types.is_map(kind) or pa.types.is_binary(kind) or pa.types.is_time(kind):
        raise ConfigError(f"{side}: {name}: {kind} cannot be read from JSON; read the {side} as a "
                          f"string and use Spark's from_json")
    return kind


class _Records:
    """Decoder for Avro in Confluent's wire format."""

    def __init__(self, side: str, formats: Formats, form: Format, kind: Any):

        from pylog.client.serialization.avro import Avro, without_uuids

        document = json.loads(form.schema)
        self._kind = kind
        self._plain = without_uuids
        self._has_uuids = '"uuid"' in form.schema
        self._avro = Avro(formats.registry(), reader_schema=document, is_key=side == "key")
        self._unknown: set[bytes] = set()

    def __call__(self, raw: Any) -> Any:
        import pyarrow as pa

        found = self._natively(raw)
        if found is not None:
            return found
        values = [None if row is None else self._value(row) for row in raw.to_pylist()]
        try:
            return pa.array(values, self._kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as wrong:
            raise SerializationError(f"the value does not fit its schema: {wrong}") from wrong

    def _natively(self, raw: Any) -> Any:
        """Decode flat records natively. Returns None if any is not flat or invalid; then the
        caller decodes them one at a time.
        """
        import pyarrow as pa

        from pylog.client.serialization.avro import arrow_type
        from pylog.client.serialization.avro_columns import flat_column
        from pylog.client.serialization.registry import RegistryError

        reader = self._avro._reader
        try:
            found = flat_column(raw, self._avro.writer_schema, reader, arrow_type(reader))
            if found is None or not pa.types.is_struct(self._kind):
                return None if found is None else found.cast(self._kind)
            columns = dict(zip(found.type.names, found.flatten()))
            return pa.StructArray.from_arrays(
                [columns[field.name].cast(field.type) for field in self._kind],
                fields=list(self._kind), mask=found.is_null())
        except (SerializationError, RegistryError, pa.ArrowInvalid):
            return None

    def _value(self, row: bytes) -> Any:
        from pylog.client.serialization.registry import RegistryError

        if row[:5] in self._unknown:
            raise SerializationError("the registry does not know its schema")
        try:
            value = self._avro.deserialize(row)
        except RegistryError as refused:
            if refused.status != _NOT_FOUND:
                raise  # The registry is unreachable or failed: always an error.
            if len(self._unknown) < IDS_UNKNOWN_MAX:
                self._unknown.add(row[:5])
            raise SerializationError(str(refused)) from refused
        return self._plain(value) if self._has_uuids else value
