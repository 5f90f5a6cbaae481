"""Records that the form of a page encodes by schemas."""

import json

import pytest

from pylog.client import Admin, NewTopic
from tests.console.served import Served
from tests.console.views.test_browse import cells
from tests.console.views.test_decoded_records import AVRO, PROTO
from tests.fixtures import registries

TOPIC = "written"


@pytest.fixture(scope="module")
def served(broker):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, 1)])
    with registries.played() as registry:
        registry.schemas[1] = {"schema": json.dumps(AVRO)}
        registry.schemas[2] = {"schema": PROTO, "schemaType": "PROTOBUF"}
        registry.schemas[3] = {"schemaType": "JSON", "schema": json.dumps(
            {"type": "object", "properties": {"id": {"type": "integer"}}})}
        registry.subjects[f"{TOPIC}-value"] = {1: 1}
        registry.subjects["shapes"] = {1: 3}
        with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                    console_schema_registry_url=registry.url) as one:
            yield one


def send(client, key, value, **fields):
    return client.post(f"/topics/{TOPIC}/produce", {
        "key": key, "key_format": "text", "value": json.dumps(value), "value_format": "schema",
        **{f"value_{name}": text for name, text in fields.items()}})


def values(client):
    return {row[3]: row[4] for row in cells(client.get(f"/topics/{TOPIC}/records"))}


@pytest.mark.parametrize(("key", "value", "fields", "name"), [
    ("subject", {"id": 7, "pin": "abc"}, {"subject": f"{TOPIC}-value"}, "Avro, schema 1"),
    ("version", {"id": 8, "pin": "abc"}, {"subject": f"{TOPIC}-value", "version": "1"},
     "Avro, schema 1"),
    ("id", {"id": 9, "pin": "abc"}, {"schema": "2", "message": "Order"}, "Protobuf, schema 2"),
    ("json", {"id": 10}, {"subject": "shapes"}, "JSON Schema, schema 3")])
def test_a_value_is_encoded_by_the_chosen_schema(client, key, value, fields, name):
    assert send(client, key, value, **fields).status == 303
    text = values(client)[key]
    assert text.endswith(f" {name}") and json.loads(text.removesuffix(name)) == value


@pytest.mark.parametrize(("value", "fields", "reason"), [
    ({"id": "x", "pin": "abc"}, {"subject": f"{TOPIC}-value"}, "$.id"),
    ({"id": "x"}, {"subject": "shapes"}, "$.id"), ({"no": 1}, {"schema": "2"}, "no"),
    ({}, {"subject": "nothing"}, "no subject nothing"), ({}, {"schema": "99"}, "no schema"),
    ({}, {}, "Enter a subject"), ({}, {"schema": "x"}, "id of the schema")])
def test_a_value_that_does_not_fit_keeps_the_form(client, value, fields, reason):
    before = values(client)
    page = send(client, "bad", value, **{"subject": "", **fields})
    assert page.status == 400 and reason in page.text
    assert json.dumps(value).replace('"', "&#34;") in page.text
    assert values(client) == before


@pytest.mark.parametrize(("value", "fields"), [
    ({"id": 7, "pin": "abc"}, {"subject": f"{TOPIC}-value"}),
    ({"id": 9, "pin": "abc"}, {"schema": "2", "message": "Order"})])
def test_a_copy_of_a_record_is_edited_as_json(client, value, fields):
    place = send(client, "copied", value, **fields).headers
    assert place["Location"].endswith("/produce")
    rows = cells(client.get(f"/topics/{TOPIC}/records?key=copied"))
    page = client.get(f"/topics/{TOPIC}/produce?partition=0&offset={rows[0][1]}").text
    assert "&#34;id&#34;: " in page
    number = "1" if "subject" in fields else "2"
    assert f'name="value_schema" value="{number}"' in page
    assert f'name="value_message" value="{1 if number == "2" else ""}"' in page
