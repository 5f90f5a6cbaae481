"""Format records for people and programs: bytes, JSON lines, columns.

Owns: nothing.
Invariants: raw writes the bytes of a value, escaped on a terminal, and a newline; a value that
  cannot be parsed (JSON, Avro) is shown as text with the error, and reading continues.
Source: none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pylog.tools.cli.escapes import escaped, text_of
from pylog.tools.cli.output import Printer
from pylog.tools.cli.session import ToolError
from pylog.tools.cli.time_arguments import shown
from pylog.tools.records import internal_topics, template

FORMATS = ("raw", "json", "avro", "table")
KEY_COLUMNS, VALUE_COLUMNS = 24, 60


def is_template(kind: str) -> bool:
    return "%" in kind


class Shape:
    """The formatter of one run."""

    def __init__(self, out: Printer, kind: str, keys: bool, headers: bool, registry: str | None):
        self.out, self.kind, self.keys, self.headers = out, kind, keys, headers
        self.decode: Callable[[bytes], Any] = _json if kind == "json" else text_of
        if kind == "avro":
            self.decode = _avro(registry)
        self._template = template.compiled(kind) if is_template(kind) else None
        self._meanings: dict[str, Any] = {}
        self._has_title = False
        # Formats that native code prints: raw values, with keys, and JSON.
        self.takes_columns = kind == "raw" and (out.as_json or not headers)
        self.needs_headers = out.as_json or headers
        self._heads: dict[Any, bytes] = {}

    def print(self, found: list[Any]) -> None:
        """Write a batch of records."""
        if self.out.as_json or self.kind in ("json", "avro"):
            for record in found:
                self.out.json_line(self.row(record))
        elif self._template is not None:
            self.out.write_bytes(b"".join([self._template(record) for record in found]))
        elif self.kind == "table":
            self._table(found)
        elif not self.keys and not self.headers:
            self.out.write_bytes(b"".join([(record.value or b"") + b"\n" for record in found]))
        else:
            self.out.write_bytes(b"".join([self._raw(record) for record in found]))
        self.out.out.flush()

    def print_columns(self, columns: Any, stretches: list[tuple[int, int, Any]]) -> None:
        """Write rows [start, stop) of each partition, as raw values or JSON."""
        from pylog._native.client import text_lines

        if self.out.as_json:
            text = text_lines.documents(columns, [(start, stop, self._head(part))
                                                  for start, stop, part in stretches])
        else:
            text = text_lines.raw(
                columns, [(start, stop) for start, stop, _ in stretches], self.keys)
        self.out.write_bytes(memoryview(text))
        self.out.out.flush()

    def _head(self, part: Any) -> bytes:
        """Return a JSON document's beginning up to the offset, equal to json.dumps of `row`."""
        found = self._heads.get(part)
        if found is None:
            topic = json.dumps(part.topic, ensure_ascii=False)
            found = self._heads[part] = (f'{{"topic": {topic}, "partition": {part.partition}, '
                                         '"offset": ').encode()
        return found

    def row(self, record: Any) -> dict[str, Any]:
        """Return a record as a dict; the keys are stable."""
        made = {"topic": record.topic, "partition": record.partition, "offset": record.offset,
                "timestamp": record.timestamp, "key": text_of(record.key), "value": None,
                "headers": [{"key": key, "value": text_of(value)}
                            for key, value in record.headers]}
        meaning = self._meaning(record)
        if meaning is not None:
            made["key"], made["value"] = meaning.get("key"), meaning
        elif record.value is not None:
            try:
                made["value"] = self.decode(record.value)
            except (ValueError, ToolError) as error:
                made["value"], made["error"] = text_of(record.value), str(error)
        return made

    def _meaning(self, record: Any) -> dict[str, Any] | None:
        """Return the decoder of an internal topic, unless raw bytes were requested."""
        if self.kind == "raw" or not record.topic.startswith("__"):
            return None
        reader = self._meanings.get(record.topic)
        if reader is None:
            reader = self._meanings[record.topic] = internal_topics.reader(record.topic)
        found: dict[str, Any] | None = reader(record.key, record.value, False)
        return found

    def _raw(self, record: Any) -> bytes:
        parts = []
        if self.headers:
            parts.append(b",".join(key.encode() + b"=" + (value or b"")
                                   for key, value in record.headers))
        if self.keys:
            parts.append(record.key or b"")
        return b"\t".join([*parts, record.value or b""]) + b"\n"

    def _table(self, found: list[Any]) -> None:
        # Fixed column widths: an endless table cannot be measured first.
        if not self._has_title:
            self._has_title = True
            self.out.title(f"{'TIME':<24}  {'PARTITION':>9}  {'OFFSET':>12}  "
                           f"{'KEY':<{KEY_COLUMNS}}  VALUE")
        for record in found:
            row = self.row(record)
            value = row["value"]
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            tail = "  " + ",".join(f"{one['key']}={one['value']}" for one in row["headers"]) \
                if self.headers and row["headers"] else ""
            key = "-" if row["key"] is None else str(row["key"])
            self.out.line(f"{shown(record.timestamp):<24}  {record.partition:>9}  "
                          f"{record.offset:>12}  {_cut(key, KEY_COLUMNS):<{KEY_COLUMNS}}  "
                          f"{_cut(text, VALUE_COLUMNS) if value is not None else '-'}{tail}")


def _cut(text: str, columns: int) -> str:
    text = escaped(text.replace("\n", " ").replace("\t", " "))
    return text if len(text) <= columns else text[:columns - 3] + "..."


def _json(data: bytes) -> Any:
    return json.loads(data)


def _avro(registry: str | None) -> Callable[[bytes], Any]:
    if not registry:
        raise ToolError("avro needs --registry URL")
    from pylog.client.errors import SerializationError
    from pylog.client.serialization.avro import Avro
    from pylog.client.serialization.registry import RegistryError, SchemaRegistry

    avro = Avro(SchemaRegistry(registry))

    def decode(data: bytes) -> Any:
        try:
            return json.loads(json.dumps(avro.deserialize(data), default=_json_default))
        except SerializationError as error:
            raise ValueError(str(error)) from None
        except RegistryError as error:
            raise ToolError(str(error)) from None

    return decode


def _json_default(value: Any) -> Any:
    """Convert Avro types that JSON lacks: bytes, times, decimals."""
    return text_of(value) if isinstance(value, bytes) else str(value)
