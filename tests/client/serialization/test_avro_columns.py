"""Columns of flat Avro values: native decoding agrees with fastavro."""

import decimal
import io
import json
import uuid

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog.client.errors import SerializationError
from pylog.client.serialization.avro import Avro, arrow_type, avro_column
from pylog.client.serialization.avro_columns import flat_column
from pylog.client.serialization.registry import Schema

VALUES = {
    "null": st.none(), "boolean": st.booleans(), "int": st.integers(-2**31, 2**31 - 1),
    "long": st.integers(-2**63, 2**63 - 1), "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False), "bytes": st.binary(max_size=40),
    "string": st.text(max_size=20),
}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN", "DARK_BLUE"]}
FOUR = {"type": "fixed", "name": "Four", "size": 4}


class Registry:
    """Schemas by number, and values written with them."""

    def __init__(self, *schemas):
        self.schemas = [fastavro.parse_schema(schema) for schema in schemas]

    def schema(self, number):
        return Schema(json.dumps(self.schemas[number]))

    def written(self, rows, number=0):
        return [None if row is None else self.value(row, number) for row in rows]

    def value(self, row, number):
        out = io.BytesIO()
        out.write(b"\0" + number.to_bytes(4, "big"))
        fastavro.schemaless_writer(out, self.schemas[number], row)
        return out.getvalue()


def record(*fields):
    return {"type": "record", "name": "Row",
            "fields": [{"name": name, "type": kind} for name, kind in fields]}


def native(registry, column, read=0):
    """Decode natively; return None if the column needs fastavro."""
    schema = registry.schemas[read]
    return flat_column(column, registry.schemas.__getitem__, schema, arrow_type(schema))


@st.composite
def tables(draw):
    """Draw (schema of a flat record, rows)."""
    kinds = draw(st.lists(st.sampled_from([*VALUES, "enum", "fixed"]), min_size=1, max_size=6))
    fields, values = [], {}
    for number, kind in enumerate(kinds):
        name = f"f{number}"
        if kind == "enum":
            schema = {**COLOUR, "name": f"Colour{number}"}
            value = st.sampled_from(COLOUR["symbols"])
        elif kind == "fixed":
            schema, value = {**FOUR, "name": f"Four{number}"}, st.binary(min_size=4, max_size=4)
        else:
            schema, value = kind, VALUES[kind]
        if kind != "null" and draw(st.booleans()):
            schema = draw(st.permutations(["null", schema]))
            value = st.one_of(st.none(), value)
        fields.append((name, schema))
        values[name] = value
    rows = draw(st.lists(st.one_of(st.none(), st.fixed_dictionaries(values)), max_size=20))
    return record(*fields), rows


@settings(max_examples=200, deadline=None)
@given(tables(), st.integers(0, 3))
def test_flat_column_contains_the_written_values(table, start):
    schema, rows = table
    registry = Registry(schema)
    column = pa.array(registry.written(rows), pa.binary()).slice(start)
    found = native(registry, column)
    found.validate(full=True)
    assert found.type == arrow_type(schema) and found.to_pylist() == rows[start:]
    wide = avro_column(column.cast(pa.large_binary()), registry)
    assert wide.equals(found) or not any(rows[start:])


@settings(max_examples=200, deadline=None)
@given(tables(), st.data())
def test_damaged_values_are_rejected_or_read_as_some_value(table, data):
    schema, rows = table
    registry = Registry(schema)
    values = [bytearray(v) for v in registry.written([row for row in rows if row is not None])]
    for value in values:
        for _ in range(data.draw(st.integers(0, 2))):
            place = data.draw(st.integers(0, len(value) - 1))
            value[place] = data.draw(st.integers(0, 255))
        del value[data.draw(st.integers(0, len(value))):]
    column = pa.array([bytes(value) for value in values], pa.binary())
    try:
        found = flat_column(column, lambda _: registry.schemas[0], registry.schemas[0],
                            arrow_type(schema))
    except SerializationError:
        return
    found.validate(full=True)


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind != "null"])
def test_a_plain_value_needs_no_record(kind):
    registry = Registry(kind)
    example = {"boolean": True, "bytes": b"x", "string": "grün"}.get(kind, 3)
    column = pa.array(registry.written([example, None, example]), pa.binary())
    assert native(registry, column).to_pylist() == [example, None, example]


def test_rows_of_several_schemas_form_one_column():
    registry = Registry(record(("id", "int"), ("gone", ["null", "string"]), ("name", "string")),
                        record(("id", "long"), ("name", ["null", "string"])))
    rows = [{"id": 1, "gone": "x", "name": "a"}, {"id": 2, "gone": None, "name": "b"}]
    newer = [{"id": 2**40, "name": None}, None, {"id": 4, "name": "d"}]
    column = pa.array([*registry.written(rows[:1]), *registry.written(newer, 1),
                       *registry.written(rows[1:])], pa.binary())
    wanted = [{"id": 1, "name": "a"}, *newer, {"id": 2, "name": "b"}]
    assert native(registry, column, 1).to_pylist() == wanted
    assert avro_column(column, registry, registry.schemas[1]).to_pylist() == wanted


@pytest.mark.parametrize(("written", "read"), [
    (record(("a", "int")), record(("a", "int"), ("b", ["null", "int"]))),
    (record(("a", "int")), record(("a", "double"))),
    (record(("a", ["null", "int"])), record(("a", "int"))),
    (record(("a", ["int", "string"])), record(("a", ["int", "string"]))),
    (record(("a", COLOUR)), record(("a", {**COLOUR, "symbols": ["RED"]}))),
    (record(("a", {"type": "array", "items": "int"})),) * 2,
    (record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4})),) * 2,
    (record(("a", "int")), {**record(("a", "int")), "name": "Other"}),
])
def test_complex_schemas_are_decoded_by_fastavro(written, read):
    registry = Registry(written, read)
    example = {"a": 1}
    if written["fields"][0]["type"] == COLOUR:
        example = {"a": "RED"}
    elif isinstance(written["fields"][0]["type"], dict):
        example = {"a": [1]} if "items" in written["fields"][0]["type"] else {"a": 1}
    if "logicalType" not in str(written):
        column = pa.array([registry.value(example, 0)], pa.binary())
        assert flat_column(column, registry.schemas.__getitem__, registry.schemas[1], None) is None
    else:
        assert flat_column(pa.array([], pa.binary()), None, registry.schemas[1], None) is None


@pytest.mark.parametrize("value", [b"", b"\0\0\0\0", b"\1\0\0\0\0\x02", b"\0\0\0\0\0",
                                   b"\0\0\0\0\0\x02\x01", b"\0\0\0\0\0\x02\x04\xff\xfe"])
def test_a_row_that_is_no_value_is_named(value):
    registry = Registry(record(("id", "long"), ("name", "string")))
    good = registry.value({"id": 1, "name": "x"}, 0)
    with pytest.raises(SerializationError, match="row 1|UTF-8"):
        native(registry, pa.array([good, value, good], pa.binary()))


def test_columns_are_read_with_the_schema_that_values_are_read_with():
    old, new = record(("a", "int")), record(("a", "int"), ("b", ["null", "string"]))
    new["fields"][1]["default"] = None
    registry = Registry(old, new)
    column = pa.array([*registry.written([{"a": 1}]), *registry.written([{"a": 2, "b": "x"}], 1)])
    for avro in (Avro(registry, new), Avro(registry, old, reader_schema=new)):
        assert avro_column(column, registry, avro=avro).to_pylist() == [
            avro.deserialize(row) for row in column.to_pylist()] == [
            {"a": 1, "b": None}, {"a": 2, "b": "x"}]
    assert avro_column(column, registry, old, Avro(registry, new)).to_pylist() == [
        {"a": 1}, {"a": 2}]


def test_uuids_are_texts():
    kind = {"type": "string", "logicalType": "uuid"}
    registry = Registry(record(("id", kind), ("others", {"type": "array", "items": kind})))
    one, two = uuid.uuid4(), uuid.uuid4()
    column = pa.array(registry.written([{"id": one, "others": [two]}, None]))
    assert avro_column(column, registry).to_pylist() == [
        {"id": str(one), "others": [str(two)]}, None]


def test_logical_types_apply_only_to_the_types_that_avro_names():
    fields = {
        "fixed_uuid": ({"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}, b"x"*16),
        "bytes_uuid": ({"type": "bytes", "logicalType": "uuid"}, b"x"),
        "long_date": ({"type": "long", "logicalType": "date"}, 2**40),
        "string_decimal": ({"type": "string", "logicalType": "decimal"}, "3.5")}
    row = {name: value for name, (_, value) in fields.items()}
    registry = Registry(record(*[(name, kind) for name, (kind, _) in fields.items()]))
    column = pa.array(registry.written([row, None]))
    found = avro_column(column, registry)
    assert found.to_pylist() == [row, None] == [Avro(registry).deserialize(column[0].as_py()), None]
    assert [field.type for field in found.type] == [
        pa.binary(16), pa.binary(), pa.int64(), pa.utf8()]


def test_decimals_have_the_precision_of_their_schema():
    def kind(precision):
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}

    registry = Registry(kind(50))
    value = decimal.Decimal("9" * 48 + ".99")
    assert avro_column(pa.array([registry.value(value, 0)]), registry).to_pylist() == [value]
    with pytest.raises(SerializationError, match="precision 77"):
        arrow_type(kind(77))
