"""Confluent's Python client and serializers against this registry, and ours against theirs."""

import json

import pytest

from pylog.client.serialization import Avro, SchemaRegistry
from tests.registry.served import record

avro_module = pytest.importorskip("confluent_kafka.schema_registry.avro")
from confluent_kafka.schema_registry import (  # noqa: E402
    ConfigCompatibilityLevel, Schema, SchemaReference, SchemaRegistryClient, ServerConfig,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402


@pytest.fixture
def confluent(registry):
    return SchemaRegistryClient({"url": registry.url})


def test_schemas_are_registered_and_found(confluent, subject):
    schema = Schema(json.dumps(record("R", "a")), "AVRO")
    id_ = confluent.register_schema(subject, schema)
    assert json.loads(confluent.get_schema(id_).schema_str) == record("R", "a")
    found = confluent.lookup_schema(subject, schema)
    assert (found.schema_id, found.version, found.subject) == (id_, 1, subject)
    assert subject in confluent.get_subjects()
    assert confluent.get_versions(subject) == [1]
    assert confluent.get_version(subject, 1).schema_id == id_
    assert confluent.get_latest_version(subject).schema_id == id_


def test_levels_and_checks(confluent, subject):
    confluent.register_schema(subject, Schema('"string"', "AVRO"))
    assert not confluent.test_compatibility(subject, Schema('"int"', "AVRO"))
    with pytest.raises(SchemaRegistryError) as refused:
        confluent.register_schema(subject, Schema('"int"', "AVRO"))
    assert refused.value.http_status_code == 409
    confluent.set_config(subject, ServerConfig(
        compatibility=ConfigCompatibilityLevel.NONE))
    assert confluent.get_config(subject).compatibility_level == "NONE"
    confluent.register_schema(subject, Schema('"int"', "AVRO"))
    assert confluent.get_versions(subject) == [1, 2]


def test_references_and_deletion(confluent, subject):
    base = Schema('{"type":"fixed","name":"F","size":2}', "AVRO")
    confluent.register_schema(f"{subject}-base", base)
    confluent.register_schema(subject, Schema(
        json.dumps(record("R", ("a", "F"))), "AVRO",
        [SchemaReference("F", f"{subject}-base", 1)]))
    with pytest.raises(SchemaRegistryError) as refused:
        confluent.delete_subject(f"{subject}-base")
    assert refused.value.error_code == 42206
    assert confluent.delete_version(subject, 1) == 1
    assert confluent.delete_subject(f"{subject}-base") == [1]


def test_bytes_of_both_serializers_are_the_same(registry, confluent, subject):
    schema, value = json.dumps(record("R", "a", ("b", "int"))), {"a": "x", "b": 3}
    context = SerializationContext(subject, MessageField.VALUE)
    theirs = avro_module.AvroSerializer(confluent, schema)(value, context)
    ours = Avro(SchemaRegistry(registry.url), schema)
    assert ours.serialize(subject, value) == theirs
    assert ours.deserialize(theirs) == value
    assert avro_module.AvroDeserializer(confluent)(theirs, context) == value
