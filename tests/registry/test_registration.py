"""Registering and finding schemas."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.registry.served import EXTENDED, code, record, text_of


def test_a_new_schema_gets_an_id_and_a_version(client, subject):
    id_ = client.register(subject, {"type": "string"})
    assert client.get(f"/subjects/{subject}/versions") == (200, [1])
    assert client.get(f"/subjects/{subject}/versions/1") == (200, {
        "subject": subject, "version": 1, "id": id_, "schema": '"string"'})
    assert client.get(f"/subjects/{subject}/versions/latest/schema") == (200, "string")
    assert client.get(f"/schemas/ids/{id_}") == (200, {"schema": '"string"'})
    assert client.get(f"/schemas/ids/{id_}/schema") == (200, "string")
    assert subject in client.get(f"/schemas/ids/{id_}/subjects")[1]
    assert {"subject": subject, "version": 1} in client.get(f"/schemas/ids/{id_}/versions")[1]


def test_registering_again_changes_nothing(registry, client, subject):
    id_ = client.register(subject, record("R", "a"))
    position = registry.server.store.position
    spelled = json.dumps(record("R", "a"), indent=4)
    assert client.register(subject, spelled) == id_
    assert client.get(f"/subjects/{subject}/versions") == (200, [1])
    assert registry.server.store.position == position


def test_one_schema_has_one_id_in_all_subjects(client, subject):
    schema = record(f"Shared{subject.replace('-', '')}", "a")
    assert client.register(f"{subject}-a", schema) == client.register(f"{subject}-b", schema)


def test_concurrent_registrations_share_ids_and_lose_nothing(client, subject):
    name = subject.replace("-", "")

    def register(number):
        return client.register(f"{subject}-{number % 20}", record(f"C{name}", f"f{number % 10}"))

    with ThreadPoolExecutor(20) as pool:
        ids = list(pool.map(register, range(60)))
    assert len(set(ids)) == 10
    for number in range(60):
        assert ids[number] == ids[number % 10]
    for number in range(20):
        assert client.get(f"/subjects/{subject}-{number}/versions") == (200, [1])


def test_new_fields_are_sent_to_clients_that_accept_them(client, subject):
    body = {"schema": '"string"', "metadata": {"properties": {"owner": "x"}}}
    status, answer = client.post(f"/subjects/{subject}/versions", body, **EXTENDED)
    assert status == 200
    assert {"id", "guid", "ts", "deleted", "version", "schemaType", "metadata"} <= set(answer)
    assert client.get(f"/schemas/guids/{answer['guid']}")[1]["schema"] == '"string"'
    assert client.get(f"/schemas/guids/{answer['guid']}/ids") == (
        200, [{"context": ".", "id": answer["id"]}])
    assert "guid" not in client.get(f"/subjects/{subject}/versions/1")[1]


def test_incompatible_schemas_are_refused_with_the_reason(client, subject):
    client.register(subject, '"string"')
    body = {"schema": '"int"'}
    status, answer = client.post(f"/subjects/{subject}/versions", body)
    assert (status, answer["error_code"]) == (409, 409)
    assert "int not compatible with writer type: string" in answer["message"]
    assert client.post(f"/subjects/{subject}/versions", body, **EXTENDED)[1]["error_code"] == 40901
    assert client.get(f"/subjects/{subject}/versions") == (200, [1])
    assert client.post(f"/subjects/{subject}/versions?force=true", body)[0] == 200


def test_look_up_finds_a_schema_in_any_spelling(client, subject):
    id_ = client.register(subject, {"type": "record", "name": "a.R", "fields": [], "z": 1, "b": 2})
    for schema in ({"name": "R", "namespace": "a", "type": "record", "fields": [], "z": 1, "b": 2},
                   {"name": "a.R", "type": "record", "z": 1, "b": 2, "fields": []}):
        status, answer = client.post(f"/subjects/{subject}", {"schema": text_of(schema)})
        assert (status, answer["id"], answer["version"]) == (200, id_, 1)
    assert code(client.post(f"/subjects/{subject}", {"schema": '"int"'})) == (404, 40403)
    assert code(client.post(f"/subjects/{subject}-x", {"schema": '"int"'})) == (404, 40401)
    assert code(client.post(f"/subjects/{subject}", {"schema": '"nonsense"'})) == (422, 42201)


def test_normalised_schemas_are_found_by_their_variants(client, subject):
    client.put(f"/config/{subject}", {"compatibility": "NONE", "normalize": True})
    first = client.register(subject, {"type": "record", "name": "N", "fields": [], "b": 1, "a": 2})
    assert client.register(
        subject, {"type": "record", "name": "N", "fields": [], "a": 2, "b": 1}) == first


@pytest.mark.parametrize("body, expected", [
    ({"schema": '{"type":"record"}'}, (422, 42201)), ({"schema": ""}, (422, 42201)),
    ({}, (422, 42201)), ({"schema": 5}, (422, 422)), ([], (422, 422)), (b"{", (400, 400)),
    ({"schema": '"int"', "schemaType": "OTHER"}, (422, 42201)),
    ({"schema": '"int"', "schemaType": "PROTOBUF"}, (422, 42201)),
    ({"schema": '"int"', "version": 7}, (422, 42201)),
    ({"schema": '"int"', "id": 7}, (422, 42205)),
    ({"schema": '"int"', "references": [{"name": "x"}]}, (422, 422)),
    ({"schema": '"int"', "references": [{"name": "x", "subject": "absent", "version": 1}]},
     (422, 42201)),
    ({"schema": '"int"', "metadata": {"tags": 1}}, (422, 42210)),
    ({"schema": '"int"', "ruleSet": {"domainRules": [{}]}}, (422, 42210)),
    ({"schema": f'{{"type":"string","x":"{"x" * 1_000_000}"}}'}, (422, 42209))])
def test_registrations_that_are_refused(client, subject, body, expected):
    assert code(client.post(f"/subjects/{subject}/versions", body)) == expected
    assert code(client.get(f"/subjects/{subject}/versions")) == (404, 40401)


@pytest.mark.parametrize("path, expected", [
    ("/subjects/{}/versions/2", (404, 40402)), ("/subjects/{}/versions/0", (422, 42202)),
    ("/subjects/{}/versions/x", (422, 42202)), ("/subjects/{}-x/versions/1", (404, 40401)),
    ("/subjects/{}/versions/4294967296", (422, 42202)), ("/schemas/ids/999999", (404, 40403)),
    ("/schemas/ids/x", (404, 404)), ("/schemas/guids/x", (404, 40403)), ("/nothing", (404, 404)),
    ("/subjects/{}/versions?limit=x", (404, 404)), ("/schemas/ids", (404, 404)),
    ("/subjects/a%0Ab/versions", (422, 42208))])
def test_reads_that_are_refused(client, subject, path, expected):
    client.register(subject, '"string"')
    assert code(client.get(path.format(subject))) == expected


def test_names_may_contain_any_character_that_is_not_a_control_character(client, subject):
    name = f"{subject}/é %?#"
    id_ = client.register(name, '"string"')
    assert name in client.get("/subjects")[1]
    assert name in client.get(f"/schemas/ids/{id_}/subjects")[1]


def test_an_empty_schema_takes_the_text_of_the_previous_version(client, subject):
    client.register(subject, '"string"')
    client.register(subject, "", metadata={"properties": {"owner": "x"}})
    status, answer = client.get(f"/subjects/{subject}/versions/2")
    assert (answer["schema"], answer["metadata"]) == (
        '"string"', {"properties": {"owner": "x"}})
    assert client.get(f"/subjects/{subject}/metadata?key=owner&value=x")[1]["version"] == 2
    assert code(client.get(f"/subjects/{subject}/metadata?key=owner&value=y")) == (404, 40403)


def test_metadata_and_rules_are_returned_exactly_and_inherited(client, subject):
    rules = {"domainRules": [{"name": "r", "kind": "CONDITION", "type": "CEL", "mode": "WRITE",
                              "expr": "true"}]}
    client.put(f"/config/{subject}", {
        "compatibility": "NONE", "defaultMetadata": {"properties": {"team": "d", "a": "d"}},
        "overrideMetadata": {"properties": {"site": "o"}}})
    client.register(subject, '"string"', ruleSet=rules, metadata={"properties": {"a": "r"}})
    expected = {"properties": {"team": "d", "a": "r", "site": "o"}}
    first = client.get(f"/subjects/{subject}/versions/1")[1]
    assert (first["metadata"], first["ruleSet"]) == (expected, rules)
    client.register(subject, '"int"')
    second = client.get(f"/subjects/{subject}/versions/2")[1]
    assert (second["metadata"], second["ruleSet"]) == (expected, rules)
    found = client.get(f"/schemas?ruleType=CEL&subjectPrefix={subject}")[1]
    assert [row["version"] for row in found] == [1, 2]
    assert client.get(f"/schemas?ruleType=OTHER&subjectPrefix={subject}") == (200, [])


def test_referenced_types_are_names_and_can_be_written_out(client, subject):
    client.register(f"{subject}-base", {"type": "fixed", "name": "F", "size": 2})
    reference = {"name": "F", "subject": f"{subject}-base", "version": -1}
    id_ = client.register(subject, record("R", ("a", "F")), references=[reference])
    status, answer = client.get(f"/schemas/ids/{id_}")
    assert answer["references"] == [{**reference, "version": 1}]
    assert '"type":"F"' in answer["schema"]
    assert '"size":2' in client.get(f"/schemas/ids/{id_}?format=resolved")[1]["schema"]
    assert client.get(f"/subjects/{subject}-base/versions/1/referencedby") == (200, [id_])
    assert client.post(f"/subjects/{subject}", {
        "schema": text_of(record("R", ("a", "F"))), "references": [reference]})[1]["id"] == id_


def test_cycles_of_references_are_refused(client, subject):
    client.put(f"/config/{subject}", {"compatibility": "NONE"})
    client.register(subject, {"type": "fixed", "name": "A", "size": 1})
    client.register(f"{subject}-b", record("B", ("a", "A")), references=[
        {"name": "A", "subject": subject, "version": 1}])
    # A version may use an older one of its own subject: that is no cycle.
    client.register(subject, record("C", ("b", "B")), references=[
        {"name": "B", "subject": f"{subject}-b", "version": 1}])


def test_pages_and_lists_of_versions(client, subject):
    client.put(f"/config/{subject}", {"compatibility": "NONE"})
    for schema in ('"int"', '"long"', '"string"'):
        client.register(subject, schema)
    assert client.get(f"/subjects/{subject}/versions?offset=1&limit=1") == (200, [2])
    rows = client.get(f"/schemas?subjectPrefix={subject}&latestOnly=true")[1]
    assert [(row["version"], row["schema"]) for row in rows] == [(3, '"string"')]
    assert len(client.get(f"/schemas?subjectPrefix={subject}")[1]) == 3
    assert client.get(f"/subjects?subjectPrefix={subject}") == (200, [subject])


def test_the_highest_id_is_sent_if_requested(client, subject):
    id_ = client.register(subject, record(f"M{subject.replace('-', '')}"))
    answer = client.get(f"/schemas/ids/{id_}?fetchMaxId=true&subject={subject}")[1]
    assert answer["maxId"] >= id_
    assert (answer["subject"], answer["version"]) == (subject, 1)


def test_tags_are_refused_with_a_clear_answer(client, subject):
    client.register(subject, '"string"')
    assert code(client.post(f"/subjects/{subject}/versions/1/tags", {})) == (501, 501)


def test_the_subjects_of_an_id_are_sent_if_requested(client, subject):
    id_ = client.register(subject, record(f"I{subject.replace('-', '')}"))
    assert client.get(f"/schemas/ids/{id_}?includeSubjects=true")[1]["subjects"] == [subject]
