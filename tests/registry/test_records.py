"""The bytes of records: those of Confluent's value classes."""

import uuid

import pytest

from pylog.registry import records
from pylog.registry.records import Content, Reference


@pytest.mark.parametrize("found, expected", [
    (records.schema_key("t-value", 1),
     '{"keytype":"SCHEMA","subject":"t-value","version":1,"magic":1}'),
    (records.schema_value("t-value", 1, 7, Content("AVRO", '"string"'), False),
     '{"subject":"t-value","version":1,"id":7,"schemaType":"AVRO","schema":"\\"string\\"",'
     '"deleted":false}'),
    (records.schema_value("é", 1, 7, Content(
        "JSON", "{}", (Reference("n", "s", 1),), {"properties": {"a": "b"}},
        {"domainRules": []}), True),
     '{"subject":"é","version":1,"id":7,"schemaType":"JSON","references":[{"name":"n","subject":'
     '"s","version":1}],"metadata":{"properties":{"a":"b"}},"ruleSet":{"domainRules":[]},'
     '"schema":"{}","deleted":true}'),
    (records.scope_key("CONFIG", "t-value"), '{"keytype":"CONFIG","subject":"t-value","magic":0}'),
    (records.scope_key("MODE", ""), '{"keytype":"MODE","magic":0}'),
    (records.config_value("t-value", {"compatibilityLevel": "FULL", "alias": "x"}),
     '{"subject":"t-value","alias":"x","compatibilityLevel":"FULL"}'),
    (records.config_value("", {"compatibilityLevel": "NONE"}), '{"compatibilityLevel":"NONE"}'),
    (records.mode_value("t-value", "IMPORT"), '{"subject":"t-value","mode":"IMPORT"}'),
    (records.delete_subject_key("t-value"),
     '{"keytype":"DELETE_SUBJECT","subject":"t-value","magic":0}'),
    (records.delete_subject_value("t-value", 3), '{"subject":"t-value","version":3}'),
    (records.context_key(".ctx"),
     '{"keytype":"CONTEXT","tenant":"default","context":".ctx","magic":0}'),
    (records.context_value(".ctx"), '{"tenant":"default","context":".ctx"}'),
    (records.noop_key(), '{"keytype":"NOOP","magic":0}')])
def test_records_have_the_bytes_of_confluents_registry(found, expected):
    assert found.decode() == expected


@pytest.mark.parametrize("content, guid", [
    (Content("AVRO", '"string"'), "095d71cf-1255-6b9d-5e33-0ad575b3df5d"),
    (Content("AVRO", '"string"', (Reference("n", "s", 1),)),
     "a7e3fe32-9bf9-b5f9-9d90-f62f838b5c93")])
def test_guids_are_those_of_confluents_registry(content, guid):
    assert content.guid == uuid.UUID(guid)


def test_metadata_and_rules_change_the_guid():
    plain = Content("AVRO", '"string"')
    tagged = Content("AVRO", '"string"', metadata={"tags": {"f": ["b", "a"]}, "sensitive": ["x"]})
    same = Content("AVRO", '"string"', metadata={"sensitive": ["x"], "tags": {"f": ["a", "b"]}})
    ruled = Content("AVRO", '"string"', rule_set={"domainRules": []})
    assert tagged.guid == same.guid
    assert len({plain.guid, tagged.guid, ruled.guid}) == 3


def test_old_values_without_type_and_references_are_avro():
    content = records.content_of({"schema": '"int"', "id": 1})
    assert (content.kind, content.references, content.metadata) == ("AVRO", (), None)
