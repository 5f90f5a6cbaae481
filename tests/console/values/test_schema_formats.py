"""Schemas: Avro, Protobuf and JSON Schema to JSON and back."""

import json
import struct

import fastavro
import pytest
from hypothesis import given, settings, strategies as st

from pylog.client.errors import KafkaError, SerializationError
from pylog.client.serialization.registry import Schema
from pylog.console.values.schema_formats import Bundle, compiled, json_text

ORDER = {"type": "record", "name": "shop.Order", "fields": [
    {"name": "id", "type": "long"},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30,
                               "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
    {"name": "raw", "type": ["null", "bytes"], "default": None},
    {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
    {"name": "next", "type": ["null", "shop.Order"], "default": None}]}
VALUE = {"id": 2**63 - 1, "price": "12345678901234567890.10", "at": "2026-05-31T14:30:00Z",
         "day": "2026-05-31", "raw": "0x00ff", "state": "PAID",
         "next": {"id": 1, "price": 2, "at": 0, "state": "NEW"}}
PROTO = '''
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "money.proto";
// An order.
message Order {
  int64 id = 1;
  optional string note = 2;
  repeated int32 sizes = 3;
  map<string, Item> items = 4;
  oneof payment { string card = 5; Money cash = 6; }
  enum State { NEW = 0; PAID = 1; }
  State state = 7;
  google.protobuf.Timestamp at = 8;
  bytes raw = 9;
  message Item { uint64 count = 1; }
}
message Other { string text = 1; }
'''
MONEY = 'syntax = "proto3"; package shop; message Money { sint64 cents = 1; }'


def avro(schema):
    return compiled(Bundle(Schema(json.dumps(schema)), {}))


def proto():
    return compiled(Bundle(Schema(PROTO, "PROTOBUF", (("money.proto", "money", 3),)),
                           {("money", 3): Schema(MONEY, "PROTOBUF")}))


def test_avro_keeps_digits_and_logical_types():
    form = avro(ORDER)
    data, _ = form.to_bytes(json.dumps(VALUE), "")
    text = form.to_json(data, ())
    assert '"price": 12345678901234567890.10' in text and str(2**63 - 1) in text
    found = json.loads(text)
    assert found["at"] == VALUE["at"] and found["raw"] == "0x00ff" and found["day"] == "2026-05-31"
    assert found["next"]["state"] == "NEW"


def test_the_json_of_a_value_gives_the_same_bytes():
    form = avro(ORDER)
    data, _ = form.to_bytes(json.dumps(VALUE), "")
    assert form.to_bytes(form.to_json(data, ()), "")[0] == data
    made, indexes = proto().to_bytes(json.dumps({"id": 7, "items": {"a": {"count": 2}}}), "")
    assert proto().to_bytes(proto().to_json(made, indexes), "") == (made, (0,))


@settings(max_examples=30, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers(-2**63, 2**63 - 1) | st.text(),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.text(), inner, max_size=3)))
def test_json_text_is_the_value(value):
    assert json.loads(json_text(value)) == value


@pytest.mark.parametrize(("change", "reason"), [
    ({"id": "x"}, r"\$\.id"), ({"id": 2**63}, "64 bits"), ({"state": "GONE"}, "NEW, PAID"),
    ({"other": 1}, "a field of shop.Order"), ({"next": {"id": 1}}, r"\$\.next"),
    ({"day": "yesterday"}, "no date")])
def test_a_value_that_does_not_fit_an_avro_schema_names_the_field(change, reason):
    with pytest.raises(SerializationError, match=reason):
        avro(ORDER).to_bytes(json.dumps({**VALUE, **change}), "")


def test_bytes_after_an_avro_value_are_an_error():
    with pytest.raises(SerializationError, match="3 bytes are left"):
        avro("int").to_json(b"\2...", ())


def test_protobuf_is_read_from_the_text_of_its_schema():
    form = proto()
    data, indexes = form.to_bytes(json.dumps({
        "id": str(2**62), "cash": {"cents": -5}, "state": "PAID", "raw": "AP8=",
        "at": "2026-05-31T14:30:00Z", "items": {"a": {"count": 3}}, "sizes": [1, 2]}), "")
    assert indexes == (0,)
    assert json.loads(form.to_json(data, indexes)) == {
        "id": 2**62, "sizes": [1, 2], "items": {"a": {"count": 3}}, "cash": {"cents": -5},
        "state": "PAID", "at": "2026-05-31T14:30:00Z", "raw": "AP8="}


@pytest.mark.parametrize(("name", "indexes"), [
    ("", (0,)), ("Other", (1,)), ("shop.Order", (0,)), ("Order.Item", (0, 1)), ("Item", (0, 1))])
def test_a_protobuf_message_type_is_chosen_by_name(name, indexes):
    assert proto().to_bytes("{}", name)[1] == indexes


def test_unknown_message_types_and_fields_are_errors():
    with pytest.raises(SerializationError, match="no message type Nothing"):
        proto().to_bytes("{}", "Nothing")
    with pytest.raises(SerializationError, match=r"no message type at \[9\]"):
        proto().to_json(b"", (9,))
    with pytest.raises(Exception, match="nothing"):
        proto().to_bytes('{"nothing": 1}', "")


def test_a_protobuf_schema_without_its_import_names_it():
    with pytest.raises(SerializationError, match=r"imports money\.proto"):
        compiled(Bundle(Schema(PROTO, "PROTOBUF"), {}))


def test_groups_and_packed_fields_of_proto2_are_read():
    form = compiled(Bundle(Schema(
        "message G { optional group Res = 1 { required int32 u = 2; } "
        "repeated int32 e = 3 [packed=true]; }", "PROTOBUF"), {}))
    assert json.loads(form.to_json(b"\x0b\x10\x04\x0c\x1a\x02\x01\x02", (0,))) == {
        "res": {"u": 4}, "e": [1, 2]}


@pytest.mark.parametrize(("text", "fits"), [
    ('{"id": 1}', True), ('{"id": "x"}', False), ("{}", False), ('{"id": 1, "to": {"zip": 1}}',
                                                              False)])
def test_json_is_compared_with_its_schema(text, fits):
    schema = Schema(json.dumps({
        "type": "object", "required": ["id"],
        "properties": {"id": {"type": "integer"}, "to": {"$ref": "address.json"}}}), "JSON",
        (("address.json", "address", 1),))
    form = compiled(Bundle(schema, {("address", 1): Schema(json.dumps(
        {"type": "object", "properties": {"zip": {"type": "string"}}}), "JSON")}))
    if fits:
        assert form.to_bytes(text, "")[0] == text.encode()
    else:
        with pytest.raises(SerializationError):
            form.to_bytes(text, "")


def test_a_reference_of_a_json_schema_is_not_read_from_the_network():
    form = compiled(Bundle(Schema('{"$ref": "http://127.0.0.1:9/x.json"}', "JSON"), {}))
    with pytest.raises(Exception, match="Unresolvable|unresolvable|x.json"):
        form.to_bytes("1", "")


def test_values_equal_those_of_fastavro():
    schema = fastavro.parse_schema({"type": "map", "values": ["null", "double", "string"]})
    import io

    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"a": 1.5, "b": "x", "c": None})
    assert json.loads(avro(schema).to_json(out.getvalue(), ())) == {"a": 1.5, "b": "x", "c": None}


def test_other_kinds_of_schemas_are_named():
    with pytest.raises(KafkaError, match="XML"):
        compiled(Bundle(Schema("<a/>", "XML"), {}))
    assert struct.calcsize(">bi") == 5
