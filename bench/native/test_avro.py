"""Columns of flat Avro records: natively, and with fastavro value by value."""

import io
import json

import fastavro
import pyarrow as pa
import pytest

from bench.native import note_rate
from pylog.client.serialization.avro import Avro, arrow_type, avro_column
from pylog.client.serialization.registry import Schema

RECORDS = 100_000
DISTINCT = 1000
ORDER = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "price", "type": "double"},
    {"name": "customer", "type": "string"}, {"name": "note", "type": ["null", "string"]},
    {"name": "paid", "type": "boolean"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]}


class Registry:
    def schema(self, number: int) -> Schema:
        return Schema(json.dumps(ORDER))


@pytest.fixture(scope="module")
def column() -> pa.Array:
    schema, values = fastavro.parse_schema(ORDER), []
    for number in range(DISTINCT):
        out = io.BytesIO()
        out.write(bytes(5))
        fastavro.schemaless_writer(out, schema, {
            "id": number, "price": number * 1.5, "customer": f"customer {number}",
            "note": None if number % 3 else "as usual", "paid": number % 2 == 0,
            "at": 1_700_000_000_000 + number})
        values.append(out.getvalue())
    return pa.array(values * (RECORDS // DISTINCT), pa.binary())


def test_columns(benchmark, column):
    avro = Avro(Registry())
    benchmark(avro_column, column, avro.registry, avro=avro)
    note_rate(benchmark, "records/s", RECORDS)


def test_values(benchmark, column):
    avro = Avro(Registry())
    kind = arrow_type(ORDER)

    def work():
        return pa.array([avro.deserialize(row) for row in column.to_pylist()], kind)

    benchmark.pedantic(work, rounds=2)
    note_rate(benchmark, "records/s", RECORDS)
