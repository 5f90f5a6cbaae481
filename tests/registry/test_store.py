"""The state that records of `_schemas` give."""

import gc
import json

import pytest

from pylog.registry import records
from pylog.registry.records import Content, Reference
from pylog.registry.store import Store


class Log:
    """A store with the offsets of its records."""

    def __init__(self):
        self.store = Store()

    def add(self, key, value=None):
        if isinstance(key, dict):
            key = json.dumps(key).encode()
        if isinstance(value, dict):
            value = json.dumps(value).encode()
        self.store.apply(self.store.position, key, value, 0)

    def schema(self, subject, version, id_, text, deleted=False, **more):
        self.add(records.schema_key(subject, version), records.schema_value(
            subject, version, id_, Content("AVRO", text, **more), deleted))

    def versions(self, subject, with_deleted=False):
        return [(one.version, one.id, one.content.text)
                for one in self.store.versions(subject, with_deleted)]


@pytest.fixture
def log():
    return Log()


def test_versions_ids_and_uses_follow_the_records(log):
    log.schema("a", 1, 1, '"int"')
    log.schema("a", 2, 2, '"long"')
    log.schema("b", 1, 1, '"int"')
    assert log.versions("a") == [(1, 1, '"int"'), (2, 2, '"long"')]
    assert [one.subject for one in log.store.uses(".", 1)] == ["a", "b"]
    assert log.store.context(".").id_max == 2
    assert log.store.version("a", 1).content is log.store.version("b", 1).content


def test_soft_and_hard_deletes(log):
    log.schema("a", 1, 1, '"int"')
    log.schema("a", 2, 2, '"long"')
    log.schema("a", 2, 2, '"long"', deleted=True)
    assert log.versions("a") == [(1, 1, '"int"')]
    log.add(records.delete_subject_key("a"), records.delete_subject_value("a", 2))
    assert log.versions("a") == []
    assert len(log.versions("a", with_deleted=True)) == 2
    log.add(records.schema_key("a", 1))
    assert 1 not in log.store.context(".").contents
    log.add(records.schema_key("a", 2))
    assert "a" not in log.store.subjects
    gc.collect()
    assert not log.store._contents
    assert log.store.context(".").id_max == 2


def test_the_first_meaning_of_an_id_and_of_a_version_stays(log):
    log.schema("a", 1, 1, '"int"')
    log.schema("b", 1, 1, '"long"')
    log.schema("a", 1, 2, '"string"')
    assert log.versions("b") == []
    assert log.versions("a") == [(1, 1, '"int"')]


def test_ids_of_contexts_are_independent(log):
    log.schema("a", 1, 1, '"int"')
    log.schema(":.c:a", 1, 1, '"long"')
    assert log.store.context(".").contents[1].text == '"int"'
    assert log.store.context(".c").contents[1].text == '"long"'


def test_the_exact_keys_of_live_records_are_known(log):
    key = b'{"magic":1, "keytype":"SCHEMA", "version":1, "subject":"a", "seq":4, "node":1}'
    log.add(key, {"version": 1, "id": 3, "schema": '"int"'})
    assert log.store.version("a", 1).key == key
    config = b'{"keytype":"CONFIG","subject":null,"magic":0}'
    log.add(config, {"compatibilityLevel": "FULL"})
    assert log.store.key_of("CONFIG", "") == config
    assert log.store.configs == {"": {"compatibilityLevel": "FULL"}}
    log.add(config)
    assert log.store.configs == {} and log.store.key_of("CONFIG", "") is None


def test_settings_of_subjects_are_set_and_reset(log):
    log.add(records.scope_key("MODE", "a"), records.mode_value("a", "IMPORT"))
    assert log.store.modes == {"a": "IMPORT"}
    log.add(records.scope_key("MODE", "a"))
    assert log.store.modes == {}


def test_references_are_found_from_their_target(log):
    log.schema("base", 1, 1, '"int"')
    log.schema(":.c:base", 1, 1, '"int"')
    log.schema(":.c:user", 1, 2, '"long"', references=(Reference("n", "base", 1),))
    assert not log.store.references_to("base", 1)
    assert [one.subject for one in log.store.references_to(":.c:base", 1)] == [":.c:user"]
    log.add(records.schema_key(":.c:user", 1))
    assert not log.store.references_to(":.c:base", 1)


def test_contexts_appear_and_end(log):
    log.add(records.context_key(".c"), records.context_value(".c"))
    assert sorted(log.store.contexts) == [".", ".c"]
    log.add(records.context_key(".c"))
    assert sorted(log.store.contexts) == ["."]


@pytest.mark.parametrize("key, value", [
    (None, b"{}"), (b"", b""), (b"\xff\xfe", b"{}"), (b"[]", b"{}"), (b"{}", b"{}"),
    ({"keytype": "SCHEMA", "subject": "b", "version": 1, "magic": 1}, b"nonsense"),
    ({"keytype": "SCHEMA", "subject": "b", "version": 1, "magic": 1}, {"id": 1}),
    ({"keytype": "SCHEMA", "subject": "b", "version": "x"}, {"id": 1, "schema": "s"}),
    ({"keytype": "MODE", "subject": "b"}, [1]),
    ({"keytype": "SCHEMA", "subject": "b", "version": 1}, b"[" * 100_000)])
def test_a_record_that_cannot_be_read_is_skipped(log, key, value):
    log.add(key, json.dumps(value).encode() if isinstance(value, list) else value)
    log.schema("a", 1, 1, '"int"')
    assert log.versions("a") == [(1, 1, '"int"')]
    assert log.store.skipped == 1
    assert log.store.position == 2


@pytest.mark.parametrize("kind", ["NOOP", "ASSOC", "CLEAR_SUBJECT", "NEWER"])
def test_records_of_other_kinds_change_nothing(log, kind):
    log.add({"keytype": kind, "subject": "a", "magic": 0}, {"subject": "a"})
    assert log.store.changes == 0 and log.store.skipped == 0
