"""Formats through Spark: schemas in DDL, streaming, writing."""

import json

import pytest

from pylog.client.errors import ConfigError
from pylog.client.spark.encoding import check_types
from pylog.client.spark.formats import formats
from spark import cluster
from tests.spark.test_source_formats import ADA, USER, server  # noqa: F401
from tests.spark.topics import sent

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def topic_of(target, name, values=()):
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, name, 1)
    sent(target.bootstrap, name, [(value, b"k", 0) for value in values])
    return name


def reader(made, target, topic, **given):
    made = made.format("pylog").option("kafka.bootstrap.servers", target.bootstrap).option(
        "subscribe", topic).option("startingOffsets", "earliest")
    for name, value in given.items():
        made = made.option(name.replace("_", "."), value)
    return made


def write(frame, target, topic, **given):
    made = frame.write.format("pylog").mode("append").option(
        "kafka.bootstrap.servers", target.bootstrap).option("topic", topic)
    for name, value in given.items():
        made = made.option(name.replace("_", "."), value)
    made.save()


@pytest.mark.parametrize("schema", ["id INT, name STRING", "STRUCT<id: INT, name: STRING>"])
def test_schema_is_given_as_spark_ddl(spark, target, schema):
    topic = topic_of(target, f"ddl-{len(schema)}", [b'{"id": 1, "name": "x"}', b'{"id": 2}'])
    frame = reader(spark.read, target, topic, valueFormat="json", valueSchema=schema).load()
    assert [tuple(row) for row in frame.selectExpr("value.id", "value.name", "offset").collect()
            ] == [(1, "x", 0), (2, None, 1)]


def test_expanded_columns_and_the_users_schema(spark, target):
    topic = topic_of(target, "expanded", [b'{"id": 1, "name": "x"}', b"broken"])
    given = {"valueFormat": "json", "expandValue": "true", "mode": "permissive"}
    frame = reader(spark.read, target, topic, valueSchema="id INT, name STRING", **given).load()
    assert frame.columns[:3] == ["key", "id", "name"]
    own = reader(spark.read, target, topic, **given).schema(
        "id LONG, offset LONG, _corrupt_value BINARY").load()
    assert [tuple(row) for row in own.collect()] == [(1, 0, None), (None, 1, b"broken")]
    strict = reader(spark.read, target, topic, valueFormat="json", valueSchema="id INT").load()
    with pytest.raises(Exception, match="at offset 1: the value cannot be decoded"):
        strict.collect()


def test_a_stream_decodes_too(spark, target, tmp_path):
    topic = topic_of(target, "stream-json", [b'{"id": %d}' % number for number in range(50)])
    frame = reader(spark.readStream, target, topic, valueFormat="json",
                   valueSchema="id INT", keyFormat="string").load()
    (frame.select("key", "value.id").writeStream.format("parquet").option("path", f"{tmp_path}/out")
     .option("checkpointLocation", f"{tmp_path}/state").trigger(availableNow=True).start()
     .awaitTermination())
    assert sorted(map(tuple, spark.read.parquet(f"{tmp_path}/out").collect())) == [
        ("k", number) for number in range(50)]


def test_structs_are_written_as_json_and_read_back(spark, target):
    topic = topic_of(target, "round-json")
    shape = "id INT, name STRING, seen TIMESTAMP, price DECIMAL(8,2), tags ARRAY<STRING>"
    frame = spark.range(1).selectExpr(
        "7L AS key", "named_struct('id', 1, 'name', 'ä', 'seen', timestamp'2024-05-06 07:08:09Z', "
        "'price', cast(1.25 AS DECIMAL(8,2)), 'tags', array('x')) AS value")
    write(frame, target, topic, valueFormat="json", keyFormat="long")
    found = reader(spark.read, target, topic, valueFormat="json", valueSchema=shape,
                   keyFormat="long").load().select("key", "value").collect()[0]
    assert found.key == 7 and found.value.name == "ä" and str(found.value.price) == "1.25"
    assert str(found.value.tags) == "['x']"
    raw = reader(spark.read, target, topic).load().collect()[0]
    assert raw.key == bytearray(8 * b"\0")[:-1] + b"\7" and json.loads(raw.value)["tags"] == ["x"]


def test_avro_is_written_and_read_by_the_registry(spark, target, server):  # noqa: F811
    topic = topic_of(target, "round-avro")
    schema = {**USER, "fields": [USER["fields"][n] for n in (0, 1, 4, 5, 6)]}
    wanted = {name: ADA[name] for name in ("id", "name", "paid", "tags", "counts")}
    frame = spark.createDataFrame([(wanted,), (None,)], (
        "value STRUCT<id: LONG, name: STRING, paid: DECIMAL(8,2), tags: ARRAY<STRING>, "
        "counts: MAP<STRING, INT>>")).coalesce(1)
    given = {"valueFormat": "avro", "schema_registry_url": server.url}
    write(frame, target, topic, valueSchema=json.dumps(schema), **given)
    write(frame, target, topic, **given)  # The subject's newest schema exists now.
    found = reader(spark.read, target, topic, **given).load().select("value").collect()
    assert [row.value and row.value.asDict() for row in found] == [wanted, None] * 2


@pytest.mark.parametrize("kind, given, word", [
    ("STRUCT<a: INT>", {}, "valueFormat"), ("STRING", {"valueformat": "json"}, "struct"),
    ("LONG", {"valueformat": "int"}, "needs int"),
    ("STRUCT<a: MAP<STRING, INT>>", {"valueformat": "json"}, "to_json")])
def test_unwritable_format_is_rejected_in_one_line(spark, kind, given, word):
    from pyspark.sql.types import StructType

    with pytest.raises(ConfigError, match=word) as refused:
        check_types(formats(given), StructType.fromDDL(f"value {kind}"))
    assert "\n" not in str(refused.value)
