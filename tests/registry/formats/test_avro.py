"""Avro schemas: what is accepted, and their canonical and normalised texts.

The expected results are those of org.apache.avro:avro 1.12.1 (Schema.Parser, Schema.toString()).
"""

import json

import pytest

from pylog.registry.formats import avro
from pylog.registry.formats.schema_error import SchemaError
from tests.registry.served import record


def canonical(schema):
    return avro.parse(schema if isinstance(schema, str) else json.dumps(schema)).canonical()


FIXED = {"type": "fixed", "name": "F", "size": 2}


@pytest.mark.parametrize("source, text", [
    ('{"type": "string"}', '"string"'),
    ('{"type": "string", "doc": "x"}', '"string"'),
    ('{"type": "string", "logicalType": "uuid"}', '{"type":"string","logicalType":"uuid"}'),
    ('["null", {"type": "int"}]', '["null","int"]'), ("[]", "[]"),
    # Names are split, attributes have a fixed order, properties keep theirs.
    ('{"name":"a.b.R","type":"record","doc":"d","zz":1,"aliases":["Q"],"fields":[{"type":"int",'
     '"default":1,"name":"x","order":"ignore","doc":"fd","aliases":["y"],"p":2}]}',
     '{"type":"record","name":"R","namespace":"a.b","doc":"d","fields":[{"name":"x","type":"int",'
     '"doc":"fd","default":1,"order":"ignore","aliases":["y"],"p":2}],"zz":1,"aliases":["Q"]}'),
    # The namespace is written where it differs from the enclosing one.
    ('{"type":"record","name":"R","namespace":"a.b","fields":[{"name":"a","type":{"type":"record",'
     '"name":"S","namespace":"","fields":[{"name":"t","type":["null","a.b.R"]}]}},{"name":"u",'
     '"type":"S"}]}',
     '{"type":"record","name":"R","namespace":"a.b","fields":[{"name":"a","type":{"type":"record",'
     '"name":"S","namespace":"","fields":[{"name":"t","type":["null","a.b.R"]}]}},{"name":"u",'
     '"type":"S"}]}'),
    # A short name that is also a type's is written in full.
    ('{"name":"int","namespace":"a","type":"record","fields":[{"name":"x","type":["null","a.int"'
     ']}]}',
     '{"type":"record","name":"int","namespace":"a","fields":[{"name":"x","type":["null","a.int"'
     ']}]}'),
    ('{"name":"E","type":"enum","symbols":["A"],"default":"A","doc":"d","x":1,"aliases":["b.C"]}',
     '{"type":"enum","name":"E","doc":"d","symbols":["A"],"default":"A","x":1,"aliases":["b.C"]}'),
    ('{"size":3,"name":"F","type":"fixed","logicalType":"duration"}',
     '{"type":"fixed","name":"F","size":3,"logicalType":"duration"}'),
    ('{"type":"map","values":["null","string"],"q":{"z":1}}',
     '{"type":"map","values":["null","string"],"q":{"z":1}}'),
    # Names may be used before their definition.
    ('{"name":"R","type":"record","fields":[{"name":"a","type":"F"},{"name":"b","type":{"name":'
     '"F","type":"fixed","size":1}}]}',
     '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":'
     '1}},{"name":"b","type":"F"}]}')])
def test_canonical_text_equals_that_of_java(source, text):
    assert canonical(source) == text
    assert canonical(text) == text


@pytest.mark.parametrize("schema, reason", [
    ('"foo"', "Undefined schema: foo"), ("1", "not yet supported"), ("{}", "No type"),
    ({"type": {"type": "int"}}, "No type"), (["int", "int"], "Duplicate in union: int"),
    (["null", ["int"]], "Nested union"), ({"type": "array"}, "no items type"),
    ({"type": "record", "name": "R"}, "Record has no fields"),
    ({"type": "record", "fields": []}, "No name"),
    ({"type": "record", "name": "R-1", "fields": []}, "Illegal character in: R-1"),
    ({"type": "record", "name": "1R", "fields": []}, "Illegal initial character: 1R"),
    ({"type": "record", "name": "R", "namespace": "a-b", "fields": []}, "Illegal character"),
    (record("R", "a", "a"), "Duplicate field a in record R"),
    (record("R", ("a", "int", "x")), "Invalid default for field R.a"),
    (record("R", ("a", "int", 1.0)), "Invalid default"),
    (record("R", ("a", "int", 3_000_000_000)), "Invalid default"),
    (record("R", ("a", record("S", "b"), {})), "Invalid default"),
    (record("R", ("a", "R", {})), "Invalid default"),
    (record("R", ("a", FIXED), ("b", {**FIXED, "size": 3})), "Can't redefine: F"),
    ({"type": "enum", "name": "E"}, "Enum has no symbols"),
    ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "Duplicate enum symbol: A"),
    ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "not in the enum symbol set"),
    ({"type": "fixed", "name": "F", "size": -1}, "Invalid or no size"),
    ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "order": "up"}]},
     "Invalid order"),
    ({"type": "record", "name": "R", "aliases": "Q", "fields": []}, "Aliases")])
def test_invalid_schemas_are_refused_with_their_reason(schema, reason):
    with pytest.raises(SchemaError, match=reason):
        canonical(schema)


@pytest.mark.parametrize("schema", [
    record("R", ("a", ["null", "int"], 1)), record("R", ("a", "double", 1)),
    record("R", ("a", record("S", ("b", "int", 1)), {})), record("R", ("a", ["null", "R"], None)),
    record("R", ("a", FIXED), ("b", FIXED)), record("é", "a"),
    {"type": "int", "logicalType": "decimal", "precision": -1}])
def test_odd_schemas_that_java_accepts_are_accepted(schema):
    canonical(schema)


def test_stored_schemas_load_with_names_and_defaults_that_new_ones_may_not_have():
    text = json.dumps(record("R-1", ("a b", "int", "x")))
    assert avro.parse(text, is_strict=False).root.name == "R-1"


def test_types_of_references_are_written_as_names_and_out_if_resolved():
    other = avro.parse(json.dumps(FIXED))
    found = avro.parse(json.dumps(record("R", ("a", "F"))), [other])
    assert found.canonical() == (
        '{"type":"record","name":"R","fields":[{"name":"a","type":"F"}]}')
    assert found.resolved() == (
        '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F",'
        '"size":2}}]}')


def test_normalised_text_is_the_same_for_all_spellings():
    first = {"name": "a.R", "type": "record", "z": 1, "b": {"d": 1, "c": 2}, "aliases": ["Q", "P"],
             "fields": [{"name": "x", "type": {"type": "int", "w": 1, "logicalType": "date"},
                         "order": "ascending"}]}
    second = {"b": {"c": 2, "d": 1}, "type": "record", "namespace": "a", "name": "R", "z": 1,
              "aliases": ["a.P", "Q"],
              "fields": [{"type": {"logicalType": "date", "type": "int", "w": 1}, "name": "x"}]}
    texts = {avro.parse(json.dumps(one)).normalized() for one in (first, second)}
    assert len(texts) == 1
    text, = texts
    assert '"name":"a.R"' in text and '"type":"int","logicalType":"date","w":1' in text


def test_deep_nesting_is_refused():
    schema = "int"
    for _ in range(250):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaError, match="nested"):
        canonical(schema)
