"""Formats in both directions; the registry is a small HTTP server of the test."""

import datetime
import decimal
import json
import uuid

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog.client.errors import SerializationError
from pylog.client.serialization.avro import (
    Avro, arrow_type, avro_column, record_name, schema_id, topic_record_name,
)
from pylog.client.serialization.jsonvalues import Json, json_column, json_rows
from pylog.client.serialization.plain import (
    Bytes, Float32, Float64, Int16, Int32, Int64, Text, Uuid,
)
from pylog.client.serialization.registry import (
    RegistryError, RegistryUnavailableError, Schema, SchemaRegistry,
)
from tests.fixtures.registries import played


@pytest.mark.parametrize("form, value, data", [
    (Text(), "grün", "grün".encode()), (Text("latin-1"), "grün", b"gr\xfcn"),
    (Int16(), -2, b"\xff\xfe"), (Int32(), 258, b"\0\0\1\2"), (Int64(), 258, b"\0" * 6 + b"\1\2"),
    (Float32(), 1.5, b"\x3f\xc0\0\0"), (Float64(), 1.5, b"\x3f\xf8" + b"\0" * 6),
    (Bytes(), b"x", b"x"), (Json(), {"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'.encode()),
    (Uuid(), uuid.UUID(int=5), b"00000000-0000-0000-0000-000000000005"),
])
def test_format_is_byte_compatible_with_kafkas_and_reads_back(form, value, data):
    assert form.serialize("t", value) == data
    assert form.deserialize(data) == value


@pytest.mark.parametrize("form, value, data", [
    (Text(), 5, b"\xff"), (Int32(), 2**31, b"\0"), (Int64(), "x", b"\0" * 9),
    (Json(), object(), b"{"), (Uuid(), None, b"x"),
])
def test_unfitting_value_is_a_serialization_error(form, value, data):
    if value is not None:
        with pytest.raises(SerializationError):
            form.serialize("t", value)
    with pytest.raises(SerializationError):
        form.deserialize(data)


# ---- JSON columns


def test_json_objects_become_a_struct_column():
    values = [b'{"a": 1, "b": "x"}', None, b'{\n "b": null,\n "c": [1.5]}', b""]
    found = json_column(pa.array(values))
    assert found.to_pylist() == [{"a": 1, "b": "x", "c": None}, None,
                                 {"a": None, "b": None, "c": [1.5]}, None]
    wanted = pa.schema([("a", pa.int32()), ("z", pa.utf8())])
    assert json_column(pa.array(values), wanted).to_pylist()[0] == {"a": 1, "z": None}
    assert json_column(pa.chunked_array([pa.array(values)])).to_pylist() == found.to_pylist()


def test_json_columns_may_be_empty_null_or_large():
    assert len(json_column(pa.array([], pa.binary()))) == 0
    assert json_column(pa.array([None, None], pa.binary())).to_pylist() == [None, None]
    assert json_column(pa.array([b"{}"])).to_pylist() == [{}]
    large = json.dumps({"a": "x" * 3_000_000})
    assert json_column(pa.array([large, '{"a": "y"}'])).to_pylist()[1] == {"a": "y"}


@pytest.mark.parametrize("bad", [b"[1]", b"5", b'{"a": 1} {"a": 2}', b"{", b"text"])
def test_non_object_json_values_are_rejected(bad):
    with pytest.raises(SerializationError):
        json_column(pa.array([b'{"a": 3}', bad]))


def test_rows_survive_json_encoding():
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    assert json_column(json_rows(table)).to_pylist() == table.to_pylist()


def test_times_become_iso_8601_in_json():
    at = datetime.datetime(2026, 1, 1, 5, 1)
    table = pa.table({"at": pa.array([at], pa.timestamp("us", "UTC")), "day": [at.date()],
                      "local": pa.array([at], pa.timestamp("ms")), "time": [at.time()]})
    assert json.loads(json_rows(table)[0].as_py()) == {
        "at": "2026-01-01T05:01:00Z", "day": "2026-01-01", "local": "2026-01-01T05:01:00",
        "time": "05:01:00"}
    times = table.select(["at", "local"])
    assert json_column(json_rows(times), times.schema).to_pylist() == times.to_pylist()


# ---- schema registry


@pytest.fixture
def server():
    with played() as made:
        yield made


@pytest.fixture
def registry(server):
    return SchemaRegistry(server.url, auth=("me", "secret"))


USER = {"type": "record", "name": "User", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}]}


def test_schema_is_registered_and_fetched_once(server, registry):
    schema = Schema(json.dumps(USER))
    number = registry.register("a/b", schema)
    assert registry.register("a/b", schema) == number
    assert registry.schema(number) == schema == registry.version("a/b")[1]
    assert SchemaRegistry(registry.urls).schema(number) == schema
    assert [row for row in server.asked if row[0] == "POST"] == [
        ("POST", "/subjects/a%2Fb/versions")]
    assert server.headers["Authorization"] is None
    assert registry.is_compatible("a/b", schema) and registry.subjects() == ["a/b"]
    assert server.headers["Authorization"].startswith("Basic ")


def test_rejections_and_outages_are_distinguished(server, registry):
    with pytest.raises(RegistryError) as raised:
        registry.schema(99)
    assert (raised.value.status, raised.value.error_code) == (404, 40403)
    assert not raised.value.retriable
    with pytest.raises(RegistryUnavailableError) as raised:
        registry.version("broken")
    assert raised.value.retriable and raised.value.status == 503
    with pytest.raises(RegistryUnavailableError):
        SchemaRegistry("http://127.0.0.1:1").subjects()
    both = SchemaRegistry(["http://127.0.0.1:1", *registry.urls])
    assert both.subjects() == []


def test_versions_levels_and_deletions_are_the_registrys(server, registry):
    first, second = Schema(json.dumps(USER)), Schema('"string"')
    numbers = [registry.register("s", schema) for schema in (first, second)]
    assert registry.versions("s") == [1, 2] and registry.version("s", 1) == (numbers[0], first)
    assert registry.level("s") == "BACKWARD"
    registry.set_level("FULL", "s")
    assert (registry.level("s"), registry.level()) == ("FULL", "BACKWARD")
    assert registry.compatibility("s", Schema('"bad"')) == (False, ["it is bad"])
    assert registry.delete("s", 1) == [1] and registry.delete("s") == [2]
    assert registry.subjects() == [] and registry.subjects(with_deleted=True) == ["s"]
    assert SchemaRegistry(server.url).schema(numbers[0]) == first, "records have its id still"
    with pytest.raises(RegistryError):
        registry.level("broken")


def test_deleted_schema_is_registered_again_on_use(server, registry):
    schema = Schema('"long"')
    registry.register("s", schema)
    registry.register("other", schema)
    registry.delete("s")
    registry.register("s", schema)
    registry.register("other", schema)
    assert server.subjects["s"] == {2: 1}
    asked = [path for method, path in server.asked if method == "POST"]
    assert asked == ["/subjects/s/versions", "/subjects/other/versions", "/subjects/s/versions"]


def test_an_address_may_have_the_password_and_errors_do_not_show_it(server):
    asked = SchemaRegistry(server.url.replace("://", "://me:se%40cret@"))
    asked.subjects()
    assert server.headers["Authorization"] == "Basic bWU6c2VAY3JldA=="
    with pytest.raises(RegistryError) as raised:
        asked.version("broken")
    assert "cret" not in str(raised.value) and server.url in str(raised.value)


# ---- Avro


def test_avro_values_carry_their_schema_id_and_are_decoded(server, registry):
    avro = Avro(registry, USER)
    data = avro.serialize("users", {"id": 5, "name": "x"})
    assert data[0] == 0 and schema_id(data) == 1 and "users-value" in server.subjects
    assert Avro(registry).deserialize(data) == avro.deserialize(data) == {"id": 5, "name": "x"}
    later = json.loads(json.dumps(USER))
    later["fields"].append({"name": "age", "type": "int", "default": 7})
    assert Avro(registry, reader_schema=later).deserialize(data) == {"id": 5, "name": "x", "age": 7}


def test_subjects_are_named_by_topic_or_record(server, registry):
    Avro(registry, USER, is_key=True).serialize("t", {"id": 1})
    Avro(registry, USER, subject=record_name).serialize("t", {"id": 1})
    Avro(registry, USER, subject=topic_record_name).serialize("t", {"id": 1})
    assert set(server.subjects) == {"t-key", "User", "t-User"}
    with pytest.raises(RegistryError):
        Avro(registry, {**USER, "name": "Other"}, register=False).serialize("t", {"id": 1})


def test_schemas_may_reference_others(server, registry):
    registry.register("user", Schema(json.dumps(USER)))
    order = {"type": "record", "name": "Order", "fields": [{"name": "by", "type": "User"}]}
    number = registry.register("order", Schema(
        json.dumps(order), references=(("User", "user", 1),)))
    named: dict = {}
    fastavro.parse_schema(USER, named)
    written = Avro(registry, "string").serialize("t", "x")[:1] + number.to_bytes(4, "big")
    assert Avro(registry).deserialize(written + b"\x0a\x02\x02x") == {"by": {"id": 5, "name": "x"}}


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\1\0\0\0\1x", b"\0\0\0\0\1", b"\0\0\0\0\1\xff"])
def test_damaged_avro_is_a_serialization_error(registry, data):
    avro = Avro(registry, USER)
    avro.serialize("t", {"id": 1})
    with pytest.raises(SerializationError):
        avro.deserialize(data)
    with pytest.raises(SerializationError):
        avro.serialize("t", {"id": "text"})
    with pytest.raises(SerializationError):
        Avro(registry).serialize("t", {"id": 1})


WIDE = {"type": "record", "name": "Wide", "fields": [
    {"name": "flag", "type": "boolean"}, {"name": "small", "type": ["null", "int"]},
    {"name": "words", "type": {"type": "array", "items": "string"}},
    {"name": "table", "type": {"type": "map", "values": "double"}},
    {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [
        {"name": "raw", "type": "bytes"}]}},
    {"name": "again", "type": "Inner"},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                               "scale": 2}},
]}
ROW = {"flag": True, "small": None, "words": ["a"], "table": {"x": 1.5}, "inner": {"raw": b"r"},
       "again": {"raw": b""}, "kind": "B", "four": b"1234", "day": datetime.date(2020, 1, 2),
       "at": datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC),
       "price": decimal.Decimal("12.34")}


def test_an_avro_column_becomes_structs(registry):
    avro = Avro(registry, WIDE)
    values = [avro.serialize("t", ROW), None, avro.serialize("t", {**ROW, "small": 3})]
    found = avro_column(pa.array(values), registry)
    assert found[1].as_py() is None and found[2].as_py()["small"] == 3
    assert found[0].as_py() == {**ROW, "table": [("x", 1.5)]}
    assert found.type.field("day").type == pa.date32()
    assert len(avro_column(pa.array([None], pa.binary()), registry)) == 1
    numbers = Avro(registry, "long")
    column = pa.array([numbers.serialize("n", 4), numbers.serialize("n", 5)])
    assert avro_column(column, registry).to_pylist() == [4, 5]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(-2**63, 2**63 - 1),
                                               st.one_of(st.none(), st.text(max_size=5))))))
def test_avro_columns_contain_the_written_values(rows):
    known = type("Known", (), {"register": lambda *_: 1,
                               "schema": lambda *_: Schema(json.dumps(USER))})()
    avro = Avro(known, USER)
    values = [None if row is None else {"id": row[0], "name": row[1]} for row in rows]
    column = pa.array([None if v is None else avro.serialize("t", v) for v in values], pa.binary())
    assert avro_column(column, known).to_pylist() == values


@pytest.mark.parametrize("schema", [
    ["int", "string"],
    {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]},
])
def test_schemas_without_an_arrow_type_are_rejected(schema):
    with pytest.raises(SerializationError):
        arrow_type(schema)
