"""Avro, Protobuf, JSON Schema and MessagePack: bytes to JSON text, and JSON text to bytes.

Owns: nothing; the worker keeps the compiled schemas.
Invariants: runs only in the decoder process, because schemas and values may be hostile; numbers
  keep all their digits; a text that `to_json` returned encodes to a value that decodes to it.
Source: Avro 1.11; Protobuf's JSON mapping; JSON Schema; Confluent's wire format (message indexes).
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import io
import json
import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pylog.client.errors import MissingExtraError, SerializationError
from pylog.client.serialization.avro import Avro
from pylog.client.serialization.registry import Schema

AVRO, PROTOBUF, JSON_SCHEMA = "AVRO", "PROTOBUF", "JSON"
NAMES = {AVRO: "Avro", PROTOBUF: "Protobuf", JSON_SCHEMA: "JSON Schema"}
KNOWN_FILES = "google/protobuf/"


class Bundle(NamedTuple):
    """A schema with the schemas that it refers to, by subject and version."""

    schema: Schema
    others: dict[tuple[str, int], Schema]


class Format(Protocol):
    """A compiled schema. indexes: path of the message type in its file, for Protobuf only."""

    def to_json(self, data: bytes, indexes: Sequence[int]) -> str:
        """Return a value as JSON. Raises an exception of any kind for invalid bytes."""

    def to_bytes(self, text: str, message: str) -> tuple[bytes, tuple[int, ...]]:
        """Return the bytes of a value in JSON, and the indexes of its message type. message: its
        name, "" for the first one. Raises an exception of any kind if it does not fit the schema.
        """


def compiled(bundle: Bundle) -> Format:
    """Return the format of a schema. Raises MissingExtraError, and exceptions of any kind for
    invalid schemas.
    """
    kinds: dict[str, Callable[[Bundle], Format]] = {
        AVRO: AvroFormat, PROTOBUF: ProtobufFormat, JSON_SCHEMA: JsonSchemaFormat}
    kind = kinds.get(bundle.schema.kind)
    if kind is None:
        raise SerializationError(f"schemas of the kind {bundle.schema.kind} are not supported")
    return kind(bundle)


# ---- JSON text


def json_text(value: Any) -> str:
    """Return a value in one line of JSON. Decimals are numbers with all their digits; bytes are 0x
    and hexadecimal digits; dates and times are ISO 8601; NaN and infinity are texts.
    """
    try:
        # The fast way covers everything but logical types.
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        parts: list[str] = []
        _write(value, parts.append)
        return "".join(parts)


def _write(value: Any, out: Callable[[str], object]) -> None:
    if isinstance(value, dict):
        for number, (name, item) in enumerate(value.items()):
            out(f"{', ' if number else '{'}{json.dumps(str(name), ensure_ascii=False)}: ")
            _write(item, out)
        out("}" if value else "{}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            out(", " if number else "[")
            _write(item, out)
        out("]" if value else "[]")
    elif isinstance(value, decimal.Decimal) and value.is_finite():
        out(format(value, "f"))
    elif isinstance(value, float) and math.isfinite(value):
        out(repr(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        out(f'"0x{bytes(value).hex()}"')
    elif isinstance(value, datetime.datetime | datetime.date | datetime.time):
        out(json.dumps(value.isoformat().replace("+00:00", "Z")))
    elif value is None or isinstance(value, bool | int | str):
        out(json.dumps(value, ensure_ascii=False))
    else:
        out(json.dumps(str(value), ensure_ascii=False))


# ---- Avro


class _Bundled:
    """The part of a registry that Avro reads schemas with."""

    def __init__(self, bundle: Bundle):
        self._bundle = bundle

    def schema(self, number: int) -> Schema:
        return self._bundle.schema

    def version(self, subject: str, version: int) -> tuple[int, Schema]:
        return 0, self._bundle.others[subject, version]


class AvroFormat:
    def __init__(self, bundle: Bundle):
        self._schema = Avro(_Bundled(bundle)).writer_schema(0)  # type: ignore[arg-type]
        self._named: dict[str, Any] = {}
        _collect(self._schema, self._named)

    def to_json(self, data: bytes, indexes: Sequence[int]) -> str:
        import fastavro

        stream = io.BytesIO(data)
        value = fastavro.schemaless_reader(stream, self._schema, None)
        left = len(data) - stream.tell()
        if left:
            raise SerializationError(f"{left} bytes are left after the value")
        return json_text(value)

    def to_bytes(self, text: str, message: str) -> tuple[bytes, tuple[int, ...]]:
        import fastavro

        value = _from_json(self._schema, json.loads(text, parse_float=decimal.Decimal), self._named,
                           "$")
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, value, strict_allow_default=True)
        return out.getvalue(), ()


def _collect(schema: Any, named: dict[str, Any]) -> None:
    """Find the named types of a parsed schema."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named)
    elif isinstance(schema, dict):
        named.update(schema.get("__named_schemas", {}))
        if "name" in schema:
            named[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _collect(field["type"], named)
        for part in ("items", "values", "type"):
            if isinstance(schema.get(part), dict | list):
                _collect(schema[part], named)


def _from_json(schema: Any, value: Any, named: dict[str, Any], path: str) -> Any:
    """Return the value that fastavro writes for a JSON value. Raises SerializationError."""
    if isinstance(schema, list):
        return _union(schema, value, named, path)
    if isinstance(schema, str):
        if schema in named:
            return _from_json(named[schema], value, named, path)
        return _primitive(schema, value, path)
    kind = schema["type"]
    if kind in ("record", "error"):
        return _record(schema, value, named, path)
    if kind == "array":
        _expect(isinstance(value, list), value, "a list", path)
        return [_from_json(schema["items"], item, named, f"{path}[{number}]")
                for number, item in enumerate(value)]
    if kind == "map":
        _expect(isinstance(value, dict), value, "an object", path)
        return {name: _from_json(schema["values"], item, named, f"{path}.{name}")
                for name, item in value.items()}
    if kind == "enum":
        _expect(value in schema["symbols"], value, f"one of {', '.join(schema['symbols'])}", path)
        return value
    if "logicalType" in schema:
        found = _logical(schema, value, path)
        if found is not None:
            return found
    if kind == "fixed":
        data = _bytes_of(value, path)
        _expect(len(data) == schema["size"], value, f"{schema['size']} bytes", path)
        return data
    return _from_json(kind, value, named, path)


def _record(schema: Any, value: Any, named: dict[str, Any], path: str) -> dict[str, Any]:
    _expect(isinstance(value, dict), value, f"an object: {schema['name']}", path)
    fields = {field["name"]: field for field in schema["fields"]}
    for name in value:
        _expect(name in fields, name, f"a field of {schema['name']}: {', '.join(fields)}", path)
    made = {}
    for name, field in fields.items():
        if name in value:
            made[name] = _from_json(field["type"], value[name], named, f"{path}.{name}")
        elif "default" not in field:
            raise SerializationError(f"{path}.{name}: the field is missing")
    return made


def _union(branches: list[Any], value: Any, named: dict[str, Any], path: str) -> Any:
    """Return the value of the first branch that it fits. {"branch": value} names the branch."""
    names = [branch if isinstance(branch, str) else branch.get("name") or branch["type"]
             for branch in branches]
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in names:
        name, inner = next(iter(value.items()))
        try:
            return _from_json(branches[names.index(name)], inner, named, path)
        except SerializationError:
            pass  # A field or a key of a map may have the name of a branch.
    failures = []
    for branch in branches:
        try:
            return _from_json(branch, value, named, path)
        except SerializationError as failure:
            failures.append(str(failure))
    raise SerializationError(f"{path}: {json_text(value)[:100]} fits no branch of the union: "
                             f"{'; '.join(failures)}")


_INTS = {"int": 31, "long": 63}


def _primitive(kind: str, value: Any, path: str) -> Any:
    if kind == "null":
        _expect(value is None, value, "null", path)
        return None
    if kind == "boolean":
        _expect(isinstance(value, bool), value, "true or false", path)
        return value
    if kind in _INTS:
        bits = _INTS[kind]
        _expect(isinstance(value, int) and not isinstance(value, bool)
                and -2**bits <= value < 2**bits, value, f"a whole number of {bits + 1} bits", path)
        return value
    if kind in ("float", "double"):
        if value in ("NaN", "nan", "inf", "-inf", "Infinity", "-Infinity"):
            return float(value)
        _expect(isinstance(value, int | decimal.Decimal) and not isinstance(value, bool), value,
                "a number", path)
        return float(value)
    if kind == "bytes":
        return _bytes_of(value, path)
    _expect(isinstance(value, str), value, "a text", path)
    return value


def _bytes_of(value: Any, path: str) -> bytes:
    _expect(isinstance(value, str), value, "0x and hexadecimal digits, or a text", path)
    try:
        return bytes.fromhex(value[2:]) if value.startswith("0x") else value.encode("latin-1")
    except ValueError:
        raise SerializationError(f"{path}: expected 0x and hexadecimal digits") from None


def _logical(schema: Any, value: Any, path: str) -> Any:
    """Return a value of a logical type; None if the plain type applies."""
    kind = schema["logicalType"]
    try:
        if kind == "decimal" and isinstance(value, int | decimal.Decimal | str) \
                and not isinstance(value, bool):
            return decimal.Decimal(value)
        if kind == "uuid" and isinstance(value, str):
            return str(uuid.UUID(value)) if schema["type"] == "string" else uuid.UUID(value)
        if not isinstance(value, str):
            return None
        if kind == "date":
            return datetime.date.fromisoformat(value)
        if kind.startswith("time-"):
            return datetime.time.fromisoformat(value)
        if kind.startswith("timestamp-"):
            at = datetime.datetime.fromisoformat(value)
            return at if at.tzinfo else at.replace(tzinfo=datetime.UTC)
        if kind.startswith("local-timestamp-"):
            return datetime.datetime.fromisoformat(value).replace(tzinfo=None)
    except (ValueError, ArithmeticError):
        raise SerializationError(f"{path}: {value!r:.100} is no {kind}") from None
    return None


def _expect(holds: bool, value: Any, wanted: str, path: str) -> None:
    if not holds:
        raise SerializationError(f"{path}: {json_text(value)[:100]} is not {wanted}")


# ---- Protobuf


class ProtobufFormat:
    def __init__(self, bundle: Bundle):
        require_library("Protobuf", "google.protobuf.message", "protobuf")
        from google.protobuf import descriptor_pool

        self._pool = descriptor_pool.DescriptorPool()
        self._file = self._add(bundle.schema, bundle.others, "")
        self._classes: dict[tuple[int, ...], Any] = {}

    def _add(self, schema: Schema, others: dict[tuple[str, int], Schema], name: str) -> Any:
        """Add a schema and the files that it imports to the pool. name: "" for the first."""
        for reference, subject, version in schema.references:
            try:
                self._pool.FindFileByName(reference)
            except KeyError:
                self._add(others[subject, version], others, reference)
        file = _file_of(schema.text, name or "schema.proto")
        if name:
            file.name = name
        for imported in file.dependency:
            self._add_known(imported)
        self._pool.AddSerializedFile(file.SerializeToString())
        return self._pool.FindFileByName(file.name)

    def _add_known(self, name: str) -> None:
        """Add a file that every implementation of Protobuf contains."""
        try:
            self._pool.FindFileByName(name)
            return
        except KeyError:
            pass
        if not name.startswith(KNOWN_FILES):
            raise SerializationError(f"the schema imports {name}, but has no reference to it")
        import importlib

        stem = name.removeprefix(KNOWN_FILES).removesuffix(".proto").replace("/", ".")
        if not stem.replace("_", "").replace(".", "").isalnum():
            raise SerializationError(f"the schema imports {name!r}, which does not exist")
        file = importlib.import_module(f"google.protobuf.{stem}_pb2").DESCRIPTOR
        for other in file.dependencies:
            self._add_known(other.name)
        self._pool.AddSerializedFile(file.serialized_pb)

    def _class(self, indexes: tuple[int, ...]) -> Any:
        from google.protobuf import message_factory

        found = self._classes.get(indexes)
        if found is None:
            described = list(self._file.message_types_by_name.values())[indexes[0]]
            for number in indexes[1:]:
                described = described.nested_types[number]
            found = self._classes[indexes] = message_factory.GetMessageClass(described)
        return found

    def to_json(self, data: bytes, indexes: Sequence[int]) -> str:
        try:
            kind = self._class(tuple(indexes) or (0,))
        except IndexError:
            raise SerializationError(
                f"the schema has no message type at {list(indexes)}") from None
        return json_text(_fields(kind.FromString(data)))

    def to_bytes(self, text: str, message: str) -> tuple[bytes, tuple[int, ...]]:
        from google.protobuf import json_format

        indexes = self._indexes(message)
        value = json_format.Parse(text, self._class(indexes)(), descriptor_pool=self._pool)
        return value.SerializeToString(), indexes

    def _indexes(self, name: str) -> tuple[int, ...]:
        """Return the path of a message type, by its name with or without the package, or by its
        indexes: `1` or `0.2`.
        """
        if not name:
            return (0,)
        if name.replace(".", "").isdecimal():
            return tuple(map(int, name.split(".")))

        def find(kinds: Sequence[Any], path: tuple[int, ...]) -> tuple[int, ...] | None:
            for number, kind in enumerate(kinds):
                if name in (kind.full_name, kind.name,
                            kind.full_name.removeprefix(f"{self._file.package}.")):
                    return *path, number
                inner = find(kind.nested_types, (*path, number))
                if inner is not None:
                    return inner
            return None

        found = find(list(self._file.message_types_by_name.values()), ())
        if found is None:
            raise SerializationError(f"the schema has no message type {name}")
        return found


def _file_of(text: str, name: str) -> Any:
    """Return the file descriptor of a schema: base64 of one, or the text of a .proto file."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(
            base64.b64decode(text, validate=True))
        return file
    except (binascii.Error, ValueError, DecodeError):
        require_library("Protobuf", "proto_schema_parser", "proto-schema-parser")
        from pylog.console.values.proto_text import descriptor_of

        return descriptor_of(text, name)


# Types of fields in descriptor.proto.
MESSAGE_TYPE, ENUM_TYPE, BYTES_TYPE, GROUP_TYPE = 11, 14, 12, 10


def _fields(message: Any) -> Any:
    """Return a message as a JSON value. Fields without presence have their default; 64-bit integers
    are numbers.
    """
    described = message.DESCRIPTOR
    if described.file.name.startswith(KNOWN_FILES) and described.file.name not in (
            f"{KNOWN_FILES}descriptor.proto",):
        from google.protobuf import json_format

        return json_format.MessageToDict(message)
    made: dict[str, Any] = {}
    for field in described.fields:
        if field.is_repeated:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                kind = field.message_type.fields_by_name["value"]
                made[field.name] = {_key(key): _one(kind, item)
                                    for key, item in getattr(message, field.name).items()}
            else:
                made[field.name] = [_one(field, item) for item in getattr(message, field.name)]
        elif not field.has_presence or message.HasField(field.name):
            made[field.name] = _one(field, getattr(message, field.name))
    return made


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _one(field: Any, value: Any) -> Any:
    if field.type in (MESSAGE_TYPE, GROUP_TYPE):
        return _fields(value)
    if field.type == ENUM_TYPE:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if field.type == BYTES_TYPE:
        return base64.b64encode(value).decode()
    return value


# ---- JSON Schema and MessagePack


class JsonSchemaFormat:
    """Values are JSON. They are compared with the schema only when they are written."""

    def __init__(self, bundle: Bundle):
        self._bundle = bundle

    def to_json(self, data: bytes, indexes: Sequence[int]) -> str:
        text = data.decode()
        json.loads(text)
        return text

    def to_bytes(self, text: str, message: str) -> tuple[bytes, tuple[int, ...]]:
        require_library("JSON Schema", "jsonschema", "jsonschema")
        import jsonschema
        import referencing
        from referencing.jsonschema import DRAFT7

        # Only the references of the schema itself: nothing is read from the network.
        others = {name: DRAFT7.create_resource(json.loads(
            self._bundle.others[subject, version].text))
            for name, subject, version in self._bundle.schema.references}
        document = json.loads(self._bundle.schema.text)
        kind = jsonschema.validators.validator_for(document, jsonschema.Draft7Validator)
        validator = kind(document, registry=referencing.Registry().with_resources(others.items()))
        failure = jsonschema.exceptions.best_match(validator.iter_errors(json.loads(text)))
        if failure is not None:
            raise SerializationError(f"{failure.json_path}: {failure.message[:300]}")
        return text.encode(), ()


class MessagePackFormat:
    def __init__(self) -> None:
        self._library = require_library("MessagePack", "msgspec", "msgspec").msgpack

    def to_json(self, data: bytes, indexes: Sequence[int]) -> str:
        return json_text(self._library.decode(data))

    def to_bytes(self, text: str, message: str) -> tuple[bytes, tuple[int, ...]]:
        data: bytes = self._library.encode(json.loads(text))
        return data, ()


def require_library(caller: str, module: str, name: str) -> Any:
    """Import a library. Raises MissingExtraError, which names the extra `schemas`."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as failure:
        raise MissingExtraError(caller, name, "schemas") from failure
