"""Protobuf messages with and without a registry, which is a small HTTP server of the test."""

import base64
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.timestamp_pb2 import Timestamp

from pylog.client.errors import SerializationError
from pylog.client.serialization import Protobuf, SchemaRegistry
from pylog.client.serialization.avro import record_name
from pylog.client.serialization.registry import RegistryError
from tests.fixtures.registries import played


def file_of(name, *messages, imports=()):
    """Return a .proto file whose messages have the fields of {field: type}, and nested messages."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3")
    file.dependency.extend(imports)
    for message, fields, nested in messages:
        made = file.message_type.add(name=message)
        for number, (field, kind) in enumerate(fields.items(), 1):
            given = {"type": kind} if isinstance(kind, int) else {"type": 11, "type_name": kind}
            made.field.add(name=field, number=number, label=1, **given)
        for inner in nested:
            made.nested_type.add(name=inner)
    return file


@pytest.fixture(scope="module")
def types():
    """Return the message classes of three files, as protoc generates them."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(Timestamp.DESCRIPTOR.file.serialized_pb)
    pool.Add(file_of("user.proto", ("User", {"id": 3, "name": 9}, ())))
    pool.Add(file_of("order.proto", ("Other", {}, ()), (
        "Order", {"by": ".shop.User", "at": ".google.protobuf.Timestamp"}, ("A", "Line")),
        imports=("user.proto", "google/protobuf/timestamp.proto")))
    pool.Add(file_of("later.proto", ("Later", {"id": 3, "name": 9, "age": 5}, ())))
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
            for name in ("User", "Order", "Order.Line", "Later")}


@pytest.fixture
def server():
    with played() as made:
        yield made


@pytest.fixture
def registry(server):
    return SchemaRegistry(server.url)


def test_plain_messages_have_no_head(types):
    user = types["User"](id=5, name="x")
    form = Protobuf(types["User"])
    assert form.serialize("users", user) == user.SerializeToString()
    assert form.deserialize(user.SerializeToString()) == user


@pytest.mark.parametrize("name, indexes", [
    ("User", b"\0"), ("Order", b"\2\2"), ("Order.Line", b"\4\2\2")])
def test_messages_carry_their_schema_id_and_their_place_in_the_file(
        server, registry, types, name, indexes):
    form = Protobuf(types[name], registry)
    data = form.serialize("t", types[name]())
    assert data[:1] == b"\0" and data[5:] == indexes
    assert registry.schema(int.from_bytes(data[1:5], "big")).kind == "PROTOBUF"
    assert form.deserialize(data) == types[name]()
    assert "t-value" in server.subjects


def test_imported_files_are_registered_as_references(server, registry, types):
    order = types["Order"](by={"id": 7})
    form = Protobuf(types["Order"], registry, subject=record_name)
    assert form.deserialize(form.serialize("t", order)).by.id == 7
    assert set(server.subjects) == {"user.proto", "shop.Order"}
    _, schema = registry.version("shop.Order")
    assert schema.references == (("user.proto", "user.proto", 1),)
    file = types["Order"].DESCRIPTOR.file
    assert base64.b64decode(schema.text) == file.serialized_pb


def test_a_topic_is_registered_once(server, registry, types):
    form = Protobuf(types["User"], registry, is_key=True)
    for number in range(3):
        form.serialize("users", types["User"](id=number))
    assert server.asked == [("POST", "/subjects/users-key/versions")]


def test_lookups_fail_for_schemas_that_are_not_registered(registry, types):
    with pytest.raises(RegistryError):
        Protobuf(types["User"], registry, register=False).serialize("t", types["User"]())


def test_values_with_more_fields_are_read(registry, types):
    data = Protobuf(types["Later"], registry).serialize("t", types["Later"](id=1, age=9))
    assert Protobuf(types["User"], registry).deserialize(data).id == 1


@pytest.mark.parametrize("data", [
    b"", b"\0\0\0", b"\1\0\0\0\1\0", b"\0\0\0\0\1", b"\0\0\0\0\1\1",
    b"\0\0\0\0\1\x80\x80\x80\x80\x80\x80",
    b"\0\0\0\0\1\xfe\xff\xff\xff\x0f\2", b"\0\0\0\0\1\0\xff", b"\0\0\0\0\1\0\x0a\x05x"])
def test_damaged_values_are_a_serialization_error(registry, types, data):
    with pytest.raises(SerializationError):
        Protobuf(types["User"], registry).deserialize(data)


def test_values_of_another_type_are_a_serialization_error(types):
    with pytest.raises(SerializationError, match=r"t: Protobuf cannot write .*: it is no User"):
        Protobuf(types["User"]).serialize("t", types["Later"]())


def test_a_missing_library_names_its_extra():
    code = ("import sys; sys.modules['google.protobuf'] = None\n"
            "from pylog.client.serialization import Protobuf\n"
            "try: Protobuf(int)\n"
            "except ModuleNotFoundError as failure: print(failure)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == ("Protobuf needs google.protobuf, which is not installed: run "
                           "pip install 'pylog-broker[protobuf]'\n"), done.stderr
