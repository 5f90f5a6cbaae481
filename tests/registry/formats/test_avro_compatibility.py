"""Verdicts of Java's SchemaCompatibility (org.apache.avro:avro 1.12.1), with their reasons."""

import json

import pytest

from pylog.registry.formats import avro, avro_compatibility
from pylog.registry.formats.schema_error import REASON_CHARACTERS_MAX
from tests.registry.served import record


def differences(reader, writer):
    return avro_compatibility.differences(avro.parse(json.dumps(reader)),
                                          avro.parse(json.dumps(writer)))


def enum(*symbols, name="E", **more):
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size, name="F", **more):
    return {"type": "fixed", "name": name, "size": size, **more}


NODE = record("Node", ("next", ["null", "Node"]))


@pytest.mark.parametrize("reader, writer", [
    ("long", "int"), ("float", "long"), ("double", "float"), ("bytes", "string"),
    ("string", "bytes"), (["int", "string"], "int"), ("int", ["int"]), ("long", ["int", "long"]),
    (["string", "int"], ["int"]), (record("R", "a", ("b", "int", 1)), record("R", "a")),
    (record("R", "a"), record("R", "a", "b")), (enum("A", "B"), enum("A")),
    (enum("A", default="A"), enum("A", "B")), (NODE, NODE),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    # Names match without their namespaces, or through aliases of the reader.
    ({**record("R", "a"), "namespace": "x"}, {**record("R", "a"), "namespace": "y"}),
    ({**record("S", "a"), "aliases": ["R"]}, record("R", "a")),
    ({"type": "record", "name": "R", "fields": [{"name": "b", "type": "string", "aliases": ["a"]}]},
     record("R", "a")),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4}, "bytes")])
def test_readable_schemas_have_no_differences(reader, writer):
    assert differences(reader, writer) == []


@pytest.mark.parametrize("reader, writer, reasons", [
    ("string", "int", ["reader type: string not compatible with writer type: int"]),
    ("int", "long", ["reader type: int not compatible with writer type: long"]),
    ("int", ["int", "null"], ["reader type: int not compatible with writer type: null"]),
    (["int"], ["int", "string"], ["reader union lacking writer type: string"]),
    (["null", "int"], "string", ["reader union lacking writer type: string"]),
    (record("R", "a", "b"), record("R", "a"),
     ["reader field lacks a default value: b, at /fields/1"]),
    (record("R", ("a", "int")), record("R", "a"),
     ["reader type: int not compatible with writer type: string, at /fields/0/type"]),
    (record("S", "a"), record("R", "a"), ["expected: R"]),
    (enum("A"), enum("A", "B"), ["reader enum lacks symbols: B, at /symbols"]),
    (fixed(2), fixed(3), ["expected: 3, found: 2, at /size"]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "string"},
     ["reader type: int not compatible with writer type: string, at /values"]),
    (record("Node", ("next", ["null", "Node"]), "b"), NODE,
     ["reader field lacks a default value: b, at /fields/1"])])
def test_differences_name_their_reason_and_place(reader, writer, reasons):
    assert differences(reader, writer) == reasons


def test_the_number_of_reasons_is_limited():
    many = record("R", *[f"f{number}" for number in range(300)])
    assert len(differences(many, record("R"))) == avro_compatibility.REASONS_MAX


def test_branches_of_large_unions_are_found_by_name():
    def union(field):
        return avro.parse(json.dumps([record(f"N{number}", field) for number in range(500)]))

    check = avro_compatibility._Check()
    found = check.compare(union("a").root, union("b").root, "")
    assert len(found) == avro_compatibility.REASONS_MAX
    assert len(check._results) <= 501


def test_a_reason_is_bounded():
    one, other = (enum(*(f"{letter}{number}" for number in range(5000))) for letter in "ab")
    reason, = differences(one, other)
    assert reason.startswith("reader enum lacks symbols: b0, b1, ")
    assert len(reason) == REASON_CHARACTERS_MAX
