"""Metadata and rule sets."""

import pytest

from pylog.registry import contracts, errors

RULE = {"name": "r", "kind": "CONDITION", "type": "CEL", "mode": "WRITE", "expr": "true"}


def test_valid_metadata_and_rules_are_kept_exactly():
    metadata = {"tags": {"a.b": ["PII"]}, "properties": {"owner": "x"}, "sensitive": ["owner"]}
    rules = {"domainRules": [RULE], "migrationRules": [{**RULE, "mode": "UPGRADE"}]}
    assert contracts.checked_metadata(metadata) == metadata
    assert contracts.checked_rules(rules) == {
        "migrationRules": rules["migrationRules"], "domainRules": rules["domainRules"]}
    assert contracts.checked_metadata({"tags": {}}) is None


@pytest.mark.parametrize("metadata", [[], {"tags": ["a"]}, {"properties": {"a": 1}},
                                      {"sensitive": "a"}, {"tags": {"a": "b"}}])
def test_invalid_metadata_is_refused(metadata):
    with pytest.raises(errors.RegistryError) as found:
        contracts.checked_metadata(metadata)
    assert found.value.code == errors.INVALID_RULES


@pytest.mark.parametrize("rules", [
    [], {"domainRules": {}, "migrationRules": "x"}, {"domainRules": [RULE, RULE]},
    {"domainRules": [{**RULE, "kind": "OTHER"}]}, {"domainRules": [{**RULE, "mode": "UPGRADE"}]},
    {"migrationRules": [RULE]}, {"domainRules": [{**RULE, "type": ""}]},
    {"domainRules": [{**RULE, "name": None}]}])
def test_invalid_rules_are_refused(rules):
    with pytest.raises(errors.RegistryError) as found:
        contracts.checked_rules(rules)
    assert found.value.code == errors.INVALID_RULES


def test_later_parts_take_precedence():
    assert contracts.merged_metadata(
        {"properties": {"a": "1", "b": "1"}}, None, {"properties": {"b": "2"}, "sensitive": ["x"]}
    ) == {"properties": {"a": "1", "b": "2"}, "sensitive": ["x"]}
    new = {**RULE, "expr": "false"}
    other = {**RULE, "name": "s"}
    assert contracts.merged_rules({"domainRules": [other, RULE]}, {"domainRules": [new]}) == {
        "domainRules": [other, new]}
    assert contracts.merged_metadata(None, None) is None


def test_the_version_property_can_be_left_out():
    metadata = contracts.with_version({"properties": {"a": "b"}}, 3)
    assert metadata == {"properties": {"a": "b", "confluent:version": "3"}}
    assert contracts.without_version(metadata) == {"properties": {"a": "b"}}
    assert contracts.without_version(contracts.with_version(None, 3)) is None
