"""Formats of keys and values from the options, and the resulting columns.

Owns: nothing.
Invariants: Kafka's own columns keep their names and types, regardless of the value's fields;
  schemas from the registry are resolved on the driver, once for all tasks of a query.
Source: Confluent's wire format; Spark's `mode` of from_json and from_avro.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pylog.client.errors import ConfigError

BINARY, STRING, JSON, AVRO = "binary", "string", "json", "avro"
# NumPy code (big-endian) and Spark type of Kafka's number serializers.
NUMBERS = {"short": ("i2", "ShortType"), "int": ("i4", "IntegerType"), "long": ("i8", "LongType"),
           "float": ("f4", "FloatType"), "double": ("f8", "DoubleType")}
NAMES = (BINARY, STRING, JSON, AVRO, *NUMBERS)
SIDES = ("key", "value")
URL = "schema.registry.url"
LOGIN = "schema.registry.basic.auth.user.info"
OPTIONS = {"keyformat", "valueformat", "keyschema", "valueschema", "expandvalue", "mode", URL,
           LOGIN}


@dataclass(frozen=True)
class Format:
    """The format of keys or values. schema: for JSON a DDL or a StructType's JSON, for Avro its
    JSON.
    """

    name: str = BINARY
    schema: str = ""


@dataclass(frozen=True)
class Formats:
    """The formats of keys and values.

    expand: the fields of a value become columns. permissive: a value that cannot be decoded is
    null, and its bytes are in the column named by `corrupt`.
    """

    key: Format = Format()
    value: Format = Format()
    expand: bool = False
    permissive: bool = False
    registry_url: str = ""
    registry_login: str = ""

    def of(self, side: str) -> Format:
        return self.key if side == "key" else self.value

    def registry(self) -> Any:
        """Return a registry client. Raises ConfigError without a URL."""
        from pylog.client.serialization.registry import SchemaRegistry

        if not self.registry_url:
            raise ConfigError(f"{URL} is missing: it is needed to read Avro schemas")
        user, _, password = self.registry_login.partition(":")
        return SchemaRegistry(self.registry_url, auth=(user, password) if user else None)


def corrupt(side: str) -> str:
    """Return the name of the column for undecodable bytes."""
    return f"_corrupt_{side}"


def formats(given: Mapping[str, str]) -> Formats:
    """Parse the format options. given: options by lower-case name. Raises ConfigError."""
    def format_of(side: str) -> Format:
        name = given.get(f"{side}format", BINARY).strip().lower()
        if name not in NAMES:
            raise ConfigError(f"{side}Format: one of {', '.join(NAMES)}, not {name!r}")
        schema = given.get(f"{side}schema", "").strip()
        if schema and name not in (JSON, AVRO):
            raise ConfigError(f"{side}Schema is for {side}Format json or avro")
        return Format(name, schema)

    expand = given.get("expandvalue", "false").strip().lower()
    mode = given.get("mode", "failfast").strip().lower()
    if expand not in ("true", "false"):
        raise ConfigError(f"expandValue: true or false, not {expand!r}")
    if mode not in ("failfast", "permissive"):
        raise ConfigError(f"mode: failfast or permissive, not {mode!r}")
    made = Formats(format_of("key"), format_of("value"), expand == "true", mode == "permissive",
                   given.get(URL, ""), given.get(LOGIN, ""))
    if made.expand and made.value.name not in (JSON, AVRO):
        raise ConfigError("expandValue is for valueFormat json or avro")
    return made


def with_schemas(made: Formats, topics: list[str]) -> Formats:
    """Return the formats with Avro schemas, from the registry if none was given."""
    for side in SIDES:
        if made.of(side).name == AVRO and not made.of(side).schema:
            text = _registered(made, side, topics)
            found = replace(made.of(side), schema=text)
            made = replace(made, key=found) if side == "key" else replace(made, value=found)
    return made


def _registered(made: Formats, side: str, topics: list[str]) -> str:
    """Return the latest schema of the topics' subjects. Raises ConfigError if they differ."""
    from pylog.client.serialization.avro import topic_name

    if not topics:
        raise ConfigError(f"{side}Schema is needed unless the topics are named")
    registry = made.registry()
    texts = {}
    for topic in topics:
        found = registry.version(topic_name(topic, side == "key", ""))[1]
        if found.references:
            raise ConfigError(f"{side}Schema is needed: the schema of {topic} refers to other "
                              f"schemas")
        texts[topic] = found.text
    if len({json.dumps(json.loads(text), sort_keys=True) for text in texts.values()}) > 1:
        raise ConfigError(f"{side}Schema is needed: {', '.join(sorted(texts))} have different ones")
    return next(iter(texts.values()))


def column_type(made: Formats, side: str) -> Any:
    """Return the Spark type of the decoded column, as DDL text if only Spark can parse it.

    made: formats with resolved schemas. Raises ConfigError.
    """
    from pyspark.sql import types

    form = made.of(side)
    if form.name == BINARY:
        return types.BinaryType()
    if form.name == STRING:
        return types.StringType()
    if form.name in NUMBERS:
        return getattr(types, NUMBERS[form.name][1])()
    if form.name == AVRO:
        return avro_type(side, form.schema)
    if not form.schema:
        raise ConfigError(f"{side}Schema is needed for json, or .schema(...) with the column")
    if form.schema.startswith("{"):
        return _struct_of(side, form.schema)
    return form.schema


def _struct_of(side: str, text: str) -> Any:
    from pyspark.sql.types import StructType

    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError) as broken:
        raise ConfigError(f"{side}Schema: expected a DDL or the JSON of a StructType, not "
                          f"{text!r:.60}"
                          ) from broken


def avro_type(side: str, schema: str) -> Any:
    """Return the Spark type of an Avro schema. Raises ConfigError."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_type

    from pylog.client.errors import SerializationError
    from pylog.client.serialization.avro import arrow_type

    try:
        document = json.loads(schema)
        return from_arrow_type(_wide_times(arrow_type(document)), prefer_timestamp_ntz=True)
    except (ValueError, KeyError, SerializationError, PySparkTypeError) as broken:
        raise ConfigError(f"{side}Schema: no column for this Avro schema: {broken}") from broken


def _wide_times(kind: Any) -> Any:
    """Widen times of day to 64 bits, the only width that Spark supports."""
    import pyarrow as pa

    if pa.types.is_time32(kind):
        return pa.time64("ns")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_wide_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_wide_times(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _wide_times(kind.item_type))
    return kind


def columns(made: Formats, own: Any) -> Any:
    """Return the whole schema: `own`, with the types of decoded keys and values.

    own: the StructType of Kafka's columns. The result is a StructType, or DDL. Raises ConfigError.
    """
    from pyspark.sql.types import BinaryType, StructType

    fields: list[tuple[str, Any]] = []
    for field in own:
        kind = column_type(made, field.name) if field.name in SIDES else field.dataType
        if field.name != "value" or not made.expand:
            fields.append((field.name, kind))
        elif isinstance(kind, str):
            fields.append(("", kind))
        elif isinstance(kind, StructType):
            duplicates = set(own.fieldNames()) & set(kind.fieldNames())
            if duplicates:
                raise ConfigError(
                    f"expandValue: {', '.join(sorted(duplicates))} is a column already")
            fields += [(inner.name, inner.dataType) for inner in kind]
        else:
            raise ConfigError("expandValue: values are not records")
    if made.permissive:
        fields += [(corrupt(side), BinaryType()) for side in SIDES if made.of(side).name != BINARY]
    if any(isinstance(kind, str) for _, kind in fields):
        return ", ".join(_ddl(name, kind) for name, kind in fields)
    shape, nullable = StructType(), {field.name: field for field in own}
    for name, kind in fields:
        if name in nullable and name not in SIDES:
            shape.add(nullable[name])
        else:
            shape.add(name, kind)
    return shape


def _ddl(name: str, kind: Any) -> str:
    if not isinstance(kind, str):
        return f"`{name}` {kind.simpleString()}"
    if not name:
        return kind
    return f"`{name}` " + (kind if kind.lower().startswith("struct<") else f"struct<{kind}>")


def checked(made: Formats, schema: Any, own: Any) -> Any:
    """Return the requested schema if it can be served. It may omit columns, but not add any.

    Raises ConfigError.
    """
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)}: duplicate columns; expandValue adds the columns "
                          f"of the value")
    types = {field.name: field.dataType for field in own}
    if made.expand:
        del types["value"]
    if made.permissive:
        types.update({corrupt(side): own["value"].dataType for side in SIDES
                      if made.of(side).name != BINARY})
    for side in SIDES:
        whole = side == "key" or not made.expand
        if corrupt(side) in names and (side not in names if whole else set(names) <= set(types)):
            raise ConfigError(f"{corrupt(side)}: the decoded {side} is needed too")
    avro = avro_type("value", made.value.schema) if made.value.name == AVRO else None
    for field in schema:
        if field.name in types:
            decoded = field.name in SIDES and made.of(field.name).name != BINARY
            kind = _side_type(made, field) if decoded else types[field.name]
            if field.name != "headers" and field.dataType != kind:
                raise ConfigError(f"{field.name} is {kind.simpleString()}")
        elif not made.expand:
            raise ConfigError(f"no such column: {field.name!r}; there are {', '.join(types)}")
        elif avro is not None and not _within(field.dataType, avro, field.name):
            raise ConfigError(f"values have no field {field.name!r} of that type: they are "
                              f"{avro.simpleString()}")
    return schema


def _side_type(made: Formats, field: Any) -> Any:
    """Return the allowed type of a key or value column: for JSON any struct, for Avro some or all
    of its fields.
    """
    from pyspark.sql.types import StructType

    form = made.of(field.name)
    if form.name == JSON:
        if isinstance(field.dataType, StructType):
            return field.dataType
        raise ConfigError(f"{field.name}: JSON objects need a struct, not "
                          f"{field.dataType.simpleString()}")
    whole = column_type(made, field.name)
    if isinstance(whole, StructType) and isinstance(field.dataType, StructType) and all(
            _within(inner.dataType, whole, inner.name) for inner in field.dataType):
        return field.dataType
    return whole


def _within(kind: Any, whole: Any, name: str) -> bool:
    return name in whole.fieldNames() and whole[name].dataType == kind
