"""Schemas of a registry: listed, displayed, registered, checked, deleted."""

import json

import pytest

from tests.fixtures.registries import played
from tests.tools.support import run

USER = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]}
LATER = {**USER, "fields": [*USER["fields"], {"name": "a", "type": "long", "default": 0}]}


@pytest.fixture
def registry():
    with played() as made:
        yield made


@pytest.fixture
def tool(registry, monkeypatch):
    monkeypatch.setenv("PYLOG_REGISTRY", registry.url)
    return lambda *words, **more: run("registry", *words, **more)


@pytest.fixture
def file(tmp_path):
    def written(schema, name="schema.avsc"):
        path = tmp_path / name
        path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
        return path
    return written


def test_schemas_are_registered_listed_and_shown(tool, file):
    assert tool("register", "users-value", file(USER)).out == "users-value: id 1\n"
    assert tool("register", "users-value", file(LATER)).out == "users-value: id 2\n"
    tool("register", "other", file({"type": "object"}, "schema.json"))
    assert tool("list", "--json").json == [
        {"subject": "other", "version": 1, "id": 3, "type": "JSON", "level": "BACKWARD"},
        {"subject": "users-value", "version": 2, "id": 2, "type": "AVRO", "level": "BACKWARD"}]
    assert tool("list", "user*", "nothing").out.split()[-5:] == [
        "users-value", "2", "2", "AVRO", "BACKWARD"]
    assert [row["id"] for row in tool("versions", "users-value", "--json").json] == [1, 2]
    assert json.loads(tool("show", "users-value").out) == LATER
    assert json.loads(tool("show", "users-value", "--version", "1").out) == USER
    assert json.loads(tool("show", "--id", "1").out) == USER
    assert tool("show", "--id", "3", "--json").json["type"] == "JSON"


def test_printed_schema_can_be_registered_again(tool, file, registry):
    proto = 'syntax = "proto3";\nmessage A { int64 id = 1; }\n'
    tool("register", "a", file(proto, "a.proto"), "--reference", "b.proto=b:3")
    assert registry.schemas[1] == {"schema": proto, "schemaType": "PROTOBUF", "references": [
        {"name": "b.proto", "subject": "b", "version": 3}]}
    shown = tool("show", "a").out
    assert shown == proto + "\n"
    assert tool("show", "a", "--json").json["references"] == [
        {"name": "b.proto", "subject": "b", "version": 3}]


def test_check_prints_the_result_with_reasons(tool, file):
    tool("register", "s", file(USER))
    assert tool("check", "s", file(LATER)).out == "s (BACKWARD): compatible\n"
    told = tool("check", "s", file('"bad"'), "--json", "--type", "avro", fails=True)
    assert told.code == 1 and told.json == {
        "subject": "s", "compatible": False, "level": "BACKWARD", "reasons": ["it is bad"]}
    assert told.err == "pylog: s would reject it: it is bad\n"


def test_compatibility_is_set_globally_and_per_subject(tool, file):
    assert tool("compatibility").out == "default: BACKWARD\n"
    assert tool("compatibility", "full", "--subject", "s").out == "s: FULL\n"
    assert tool("compatibility", "NONE").out == "default: NONE\n"
    assert tool("compatibility", "--subject", "s").out == "s: FULL\n"
    assert tool("compatibility", "--subject", "t").out == "t: NONE\n"


def test_deleted_schemas_are_readable_until_permanently_deleted(tool, file, registry):
    for schema in (USER, LATER):
        tool("register", "s", file(schema))
    assert "--yes" in tool("delete", "s", fails=True).err and registry.subjects["s"] == {1: 1, 2: 2}
    assert tool("delete", "s", "--version", "1", "-y").out == "s: deleted 1\n"
    assert tool("delete", "s", "-y", "--json").json == {
        "subject": "s", "versions": [2], "permanent": False}
    assert tool("list").out == "no subjects\n"
    assert json.loads(tool("show", "--id", "1").out) == USER
    assert tool("delete", "s", "--permanent", "-y").out == "s: deleted 1, 2\n"


@pytest.mark.parametrize(("words", "told"), [
    (["show", "user-value"], "nearest valid name: users-value"),
    (["versions", "user-value"], "nearest valid name: users-value"),
    (["delete", "user-value", "-y"], "nearest valid name: users-value"),
    (["show"], "a SUBJECT or --id"), (["show", "users-value", "--id", "1"], "a SUBJECT or --id"),
    (["show", "users-value", "--version", "9"], "404 no version 9"),
    (["show", "--id", "99"], "404 no schema"),
    (["register", "users-value", "{file}", "--reference", "a=b"], "expected NAME=SUBJECT:VERSION"),
    (["compatibility", "sideways"], "'sideways' is not one of"),
    (["register", "users-value", "/nonexistent"], "No such file"),
    (["list", "--registry", "http://127.0.0.1:1"], "127.0.0.1:1"),
])
def test_failed_operations_are_reported(tool, file, words, told):
    path = file(USER)
    tool("register", "users-value", path)
    assert told in tool(*(str(path) if word == "{file}" else word for word in words),
                        fails=True).err


def test_a_file_that_is_no_schema_is_not_sent(tool, file, registry):
    error = tool("register", "s", file("{"), fails=True).err
    assert "not JSON, but a schema of type AVRO must be" in error
    assert not registry.asked


def test_missing_registry_address_is_requested(monkeypatch):
    monkeypatch.delenv("PYLOG_REGISTRY", raising=False)
    assert "--registry URL, or PYLOG_REGISTRY" in run("registry", "list", fails=True).err
