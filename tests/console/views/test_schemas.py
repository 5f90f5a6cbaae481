"""Schemas: subjects, versions, differences, check and register."""

import json

import pytest

from tests.console.served import Served
from tests.fixtures import registries

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "<b>", "type": "string"}]}


@pytest.fixture
def registry():
    with registries.played() as one:
        for number, schema in enumerate((FIRST, SECOND), 1):
            one.schemas[number] = {"schema": json.dumps(schema)}
        one.subjects["orders/value"] = {1: 1, 2: 2}
        yield one


@pytest.fixture
def client(broker, registry):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                console_schema_registry_url=registry.url) as served:
        yield served.client()


def test_subjects_are_listed_with_one_request(client, registry):
    rows = json.loads(client.get("/schemas?format=json").text)["rows"]
    assert rows == [{"subject": "orders/value", "version": 2, "id": 2, "type": "AVRO",
                     "level": "BACKWARD", "error": ""}]
    assert [row for row in registry.asked if row[1] == "/subjects"] == [("GET", "/subjects")]
    assert "/schemas/orders%2Fvalue" in client.get("/schemas").text


def test_one_broken_subject_does_not_hide_the_others(client, registry):
    registry.subjects["broken"] = {1: 1}
    rows = json.loads(client.get("/schemas?format=json").text)["rows"]
    assert [bool(row["error"]) for row in rows] == [True, False]


def test_a_subject_shows_its_latest_and_its_other_versions(client):
    text = client.get("/schemas/orders%2Fvalue").text
    assert "&lt;b&gt;" in text and "<b>" not in text
    assert "/schemas/orders%2Fvalue/1" in text
    assert "&lt;b&gt;" not in client.get("/schemas/orders%2Fvalue/1").text


def test_the_difference_marks_added_and_removed_lines(client):
    text = client.get("/schemas/orders%2Fvalue/diff?from=1&to=2").text
    assert "<ins>+" in text and "&#34;&lt;b&gt;&#34;" in text
    assert "the same" in client.get("/schemas/orders%2Fvalue/diff?from=1&to=1").text


@pytest.mark.parametrize(("path", "status"), [
    ("/schemas/nothing", 404), ("/schemas/orders%2Fvalue/9", 404),
    ("/schemas/orders%2Fvalue/x", 400), ("/schemas/orders%2Fvalue/diff?from=a&to=1", 400),
    ("/schemas/broken", 502)])
def test_errors_of_the_registry_have_error_pages(client, path, status):
    assert client.get(path).status == status


def test_a_schema_is_checked_without_being_registered(client, registry):
    form = {"subject": "orders/value", "type": "AVRO"}
    assert "is compatible with" in client.post(
        "/schemas/check", {**form, "schema": '"string"'}).text
    text = client.post("/schemas/check", {**form, "schema": '"bad"'}).text
    assert "is not compatible" in text and "it is bad" in text
    assert registry.subjects["orders/value"] == {1: 1, 2: 2}


def test_a_schema_is_registered(client, registry):
    form = {"subject": "new-value", "type": "AVRO", "schema": '"string"'}
    assert client.post("/schemas/register", form, page="/schemas/check").status == 303
    assert registry.subjects["new-value"] == {1: 3}


def test_the_registry_rejects_an_incompatible_schema(client):
    form = {"subject": "orders/value", "type": "AVRO", "schema": '"bad"'}
    assert client.post("/schemas/register", form, page="/schemas/check").status == 409


def test_a_console_without_a_registry_names_the_setting(broker):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}}) as served:
        assert "console.schema.registry.url" in served.client().get("/schemas").text
        assert served.client().get("/schemas/x").status == 404


def test_a_read_only_console_checks_schemas_but_registers_none(broker, registry):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}}, console_read_only="true",
                console_schema_registry_url=registry.url) as served:
        client = served.client()
        form = {"subject": "orders/value", "type": "AVRO", "schema": '"string"'}
        checked = client.post("/schemas/check", form)
        assert "is compatible with" in checked.text and ">Register<" not in checked.text
        assert client.post("/schemas/register", form, page="/schemas/check").status == 403
    assert registry.subjects["orders/value"] == {1: 1, 2: 2}
