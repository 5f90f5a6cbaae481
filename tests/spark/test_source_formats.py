"""Keys and values as columns; the registry is a small HTTP server of the test."""

import datetime
import json
import struct
from decimal import Decimal

import pytest
from pyspark.sql import types as T

from pylog.client.errors import ConfigError, SerializationError
from pylog.client.serialization.avro import Avro
from pylog.client.serialization.registry import RegistryUnavailableError, SchemaRegistry
from pylog.client.spark.source import PylogSource
from pylog.client.spark.splits import COLUMNS
from spark import cluster
from tests.fixtures.registries import played
from tests.spark.topics import sent

USER = {"type": "record", "name": "User", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None},
    {"name": "born", "type": {"type": "int", "logicalType": "date"}},
    {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8,
                              "scale": 2}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "counts", "type": {"type": "map", "values": "int"}},
    {"name": "code", "type": {"type": "string", "logicalType": "uuid"}}]}
SEEN = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
ADA = {"id": 1, "name": "Ada", "born": datetime.date(1815, 12, 10), "seen": SEEN,
       "paid": Decimal("12.50"), "tags": ["x", "y"], "counts": {"a": 1},
       "code": "12345678-1234-5678-1234-567812345678"}


@pytest.fixture
def server():
    with played() as made:
        yield made


@pytest.fixture
def topic(target, request):
    name = f"formats-{abs(hash(request.node.name))}"
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, name, 1)
    return name


def filled(target, topic, values, key=None):
    sent(target.bootstrap, topic, [(value, key, 0) for value in values])


def source(target, topic, **given):
    return PylogSource({"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic, **{
        name.replace("_", "."): value for name, value in given.items()}})


def rows(made, schema=None):
    import pyarrow as pa

    reader = made.reader(schema or made.schema())
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(found).to_pylist()


def values(made, schema=None):
    return [row["value"] for row in rows(made, schema)]


def struct_of(**fields):
    made = T.StructType()
    for name, kind in fields.items():
        made.add(name, kind)
    return made


# ---- texts and numbers


@pytest.mark.parametrize("name, code, kind", [
    ("short", ">h", T.ShortType()), ("int", ">i", T.IntegerType()), ("long", ">q", T.LongType()),
    ("float", ">f", T.FloatType()), ("double", ">d", T.DoubleType())])
def test_numbers_of_kafkas_serializers_are_columns(target, topic, name, code, kind):
    filled(target, topic, [struct.pack(code, -7), None, struct.pack(code, 5)])
    made = source(target, topic, valueFormat=name)
    assert made.schema()["value"].dataType == kind
    assert values(made) == [-7, None, 5]


def test_keys_and_values_have_separate_formats(target, topic):
    filled(target, topic, ["grün".encode(), b"", None], key=struct.pack(">q", 9))
    found = rows(source(target, topic, valueFormat="string", keyFormat="long"))
    assert [(row["key"], row["value"]) for row in found] == [(9, "grün"), (9, ""), (9, None)]


def test_error_of_an_invalid_value_names_its_offset(target, topic):
    filled(target, topic, [b"abcd"] * 700 + [b"abc"] + [b"abcd"] * 300)
    with pytest.raises(SerializationError, match=rf"{topic}-0 at offset 700: .*permissive"):
        rows(source(target, topic, valueFormat="int"))


def test_permissive_mode_returns_null_and_the_original_value(target, topic):
    filled(target, topic, [b"good", b"\xff\xfe", None, b"fine", b"\xc3("], key=b"\xff")
    made = source(target, topic, valueFormat="string", keyFormat="string", mode="permissive")
    found = rows(made)
    assert [row["value"] for row in found] == ["good", None, None, "fine", None]
    assert [row["_corrupt_value"] for row in found] == [None, b"\xff\xfe", None, None, b"\xc3("]
    assert [(row["key"], row["_corrupt_key"]) for row in found] == [(None, b"\xff")] * 5


def test_permissive_mode_without_the_raw_column_returns_nulls(target, topic):
    filled(target, topic, [b"12345678", b"1"])
    made = source(target, topic, valueFormat="long", mode="permissive")
    assert rows(made, struct_of(value=T.LongType()))[1] == {"value": None}
    with pytest.raises(ConfigError, match="_corrupt_value"):
        rows(made, T.StructType([T.StructField("_corrupt_value", T.BinaryType())]))


# ---- JSON

JSON_SHAPE = struct_of(
    id=T.LongType(), name=T.StringType(), at=T.TimestampType(), day=T.DateType(),
    price=T.DecimalType(8, 2), tags=T.ArrayType(T.StringType()),
    inner=struct_of(ok=T.BooleanType(), x=T.DoubleType()))
JSON_ROW = {"id": 5, "name": "ü\n", "at": SEEN, "day": datetime.date(2024, 5, 6),
            "price": Decimal("1.25"), "tags": ["a", None], "inner": {"ok": True, "x": 0.5}}
JSON_TEXT = json.dumps({**JSON_ROW, "at": "2024-05-06T07:08:09Z", "day": "2024-05-06",
                        "price": 1.25, "more": {"x": 1}}).encode()


def test_json_objects_become_a_struct_of_the_given_schema(target, topic):
    other = b'{"more": [1], "id": 6}'
    filled(target, topic, [JSON_TEXT, None, other, b" {} \n"])
    made = source(target, topic, valueFormat="json", valueSchema=JSON_SHAPE.json())
    assert made.schema()["value"].dataType == JSON_SHAPE
    nothing = dict.fromkeys(JSON_ROW)
    assert values(made) == [JSON_ROW, None, {**nothing, "id": 6}, nothing]


def test_the_schema_of_json_may_be_the_readers(target, topic):
    filled(target, topic, [JSON_TEXT])
    wanted = T.StructType([T.StructField("value", struct_of(id=T.IntegerType())),
                           T.StructField("offset", T.LongType())])
    assert rows(source(target, topic, valueFormat="json"), wanted) == [
        {"value": {"id": 5}, "offset": 0}]


def test_fields_of_a_value_may_be_separate_columns(target, topic):
    filled(target, topic, [JSON_TEXT, b'{"id": 3}', None])
    made = source(target, topic, valueFormat="json", expandValue="true",
                  valueSchema=struct_of(id=T.LongType(), name=T.StringType()).json())
    assert made.schema().fieldNames() == [
        "key", "id", "name", *COLUMNS.fieldNames()[2:]]
    assert [(row["id"], row["name"], row["offset"]) for row in rows(made)] == [
        (5, "ü\n", 0), (3, None, 1), (None, None, 2)]
    only = struct_of(name=T.StringType(), id=T.ShortType())
    assert rows(source(target, topic, valueFormat="json", expandValue="true"), only)[0] == {
        "name": "ü\n", "id": 5}


@pytest.mark.parametrize("bad", [
    b"[1]", b"5", b'{"id": 1} {"id": 2}', b"{", b'{"id": "text"}', b'{"id": 1.5}', b"\xff",
    b'{"id": 1}{"inner":[{}', b'{"id": 1, "id": 2}', b" "])
def test_json_that_does_not_match_the_schema_is_reported(target, topic, bad):
    good = [b'{"id": %d}' % number for number in range(40)]
    filled(target, topic, [*good, bad, b'{"id": 99}'])
    shape = struct_of(id=T.LongType()).json()
    with pytest.raises(SerializationError, match="at offset 40"):
        rows(source(target, topic, valueFormat="json", valueSchema=shape))
    found = rows(source(target, topic, valueFormat="json", valueSchema=shape, mode="permissive"))
    assert [row["offset"] for row in found if row["value"] is None] == [40]
    assert found[40]["_corrupt_value"] == bad and found[41]["value"] == {"id": 99}


# ---- Avro


def test_avro_is_read_as_the_subjects_newest_schema(target, topic, server):
    registry = SchemaRegistry(server.url)
    older = {**USER, "fields": [field for field in USER["fields"] if field["name"] != "name"]}
    filled(target, topic, [Avro(registry, older).serialize(topic, ADA), None,
                           Avro(registry, USER).serialize(topic, ADA)])
    made = source(target, topic, valueFormat="avro", schema_registry_url=server.url)
    assert made.schema()["value"].dataType["paid"].dataType == T.DecimalType(8, 2)
    wanted = {**ADA, "counts": [("a", 1)]}
    assert values(made) == [{**wanted, "name": None}, None, wanted]


def test_avro_fields_may_be_chosen_and_expanded(target, topic, server):
    registry = SchemaRegistry(server.url)
    filled(target, topic, [Avro(registry, USER).serialize(topic, ADA)])
    made = source(target, topic, valueFormat="avro", schema_registry_url=server.url,
                  expandValue="true")
    assert rows(made, struct_of(born=T.DateType(), id=T.LongType(), partition=T.IntegerType())) == [
        {"born": ADA["born"], "id": 1, "partition": 0}]
    with pytest.raises(ConfigError, match="nothing"):
        made.reader(struct_of(nothing=T.LongType()))


FLAT = {"type": "record", "name": "Flat", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None},
    {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "x", "type": "double"}]}


@pytest.mark.parametrize("one_by_one", [False, True])
def test_native_decoding_of_flat_records_matches_python(target, topic, server, monkeypatch,
                                                                one_by_one):
    from pylog.client.serialization import avro_columns

    if one_by_one:
        monkeypatch.setattr(avro_columns, "flat_column", lambda *given: None)
    else:
        monkeypatch.setattr(Avro, "deserialize", None)
    avro = Avro(SchemaRegistry(server.url), FLAT)
    wanted = [{"id": number, "name": None if number % 3 else f"n{number}", "seen": SEEN,
               "x": number / 2} if number % 7 else None for number in range(300)]
    filled(target, topic, [row and avro.serialize(topic, row) for row in wanted])
    given = {"valueFormat": "avro", "schema_registry_url": server.url}
    assert values(source(target, topic, **given)) == wanted
    some = struct_of(seen=T.TimestampType(), id=T.LongType())
    assert values(source(target, topic, **given), struct_of(value=some)) == [
        row and {"seen": SEEN, "id": row["id"]} for row in wanted]


def test_reader_schema_can_be_given(target, topic, server):
    registry = SchemaRegistry(server.url)
    filled(target, topic, [Avro(registry, USER).serialize(topic, ADA)])
    later = {"type": "record", "name": "User", "fields": [
        {"name": "id", "type": "double"}, {"name": "level", "type": "int", "default": 3}]}
    made = source(target, topic, valueFormat="avro", valueSchema=json.dumps(later),
                  schema_registry_url=server.url)
    assert values(made) == [{"id": 1.0, "level": 3}]


@pytest.mark.parametrize("bad", [b"", b"text", struct.pack(">bi", 0, 77) + b"x",
                                 struct.pack(">bi", 0, 1) + b"\x02"])
def test_invalid_avro_bytes_are_reported(target, topic, server, bad):
    good = Avro(SchemaRegistry(server.url), USER).serialize(topic, ADA)
    filled(target, topic, [good, bad, good])
    given = {"valueFormat": "avro", "schema_registry_url": server.url}
    with pytest.raises(SerializationError, match="at offset 1"):
        rows(source(target, topic, **given))
    found = rows(source(target, topic, mode="permissive", **given))
    assert [row["_corrupt_value"] for row in found] == [None, bad, None]


def test_a_registry_that_is_down_is_no_bad_value(target, topic, server):
    filled(target, topic, [Avro(SchemaRegistry(server.url), USER).serialize(topic, ADA)])
    made = source(target, topic, valueFormat="avro", valueSchema=json.dumps(USER),
                  schema_registry_url="http://127.0.0.1:1", mode="permissive")
    with pytest.raises(RegistryUnavailableError):
        rows(made)


# ---- invalid options


@pytest.mark.parametrize("given, word", [
    ({"valueFormat": "xml"}, "valueFormat"), ({"valueFormat": "json"}, "valueSchema"),
    ({"valueFormat": "avro"}, "schema.registry.url"), ({"mode": "loose"}, "mode"),
    ({"valueSchema": "id INT"}, "valueSchema"), ({"expandValue": "true"}, "expandValue"),
    ({"valueFormat": "json", "valueSchema": "{}"}, "valueSchema"),
    ({"valueFormat": "json", "expandValue": "true",
      "valueSchema": struct_of(offset=T.LongType()).json()}, "offset")])
def test_invalid_formats_are_reported_in_one_line(target, topic, given, word):
    with pytest.raises(ConfigError) as refused:
        source(target, topic, **given).schema()
    assert word in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("kind, given", [
    (T.LongType(), {"valueFormat": "int"}), (T.StringType(), {"valueFormat": "json"}),
    (struct_of(x=T.MapType(T.StringType(), T.IntegerType())), {"valueFormat": "json"}),
    (struct_of(x=T.BinaryType()), {"valueFormat": "json"})])
def test_incompatible_columns_are_rejected(target, topic, kind, given):
    filled(target, topic, [b"{}"])
    with pytest.raises(ConfigError, match="value"):
        rows(source(target, topic, **given), struct_of(value=kind))
