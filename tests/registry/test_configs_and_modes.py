"""Compatibility levels, modes, aliases and contexts."""

import json

import pytest

from tests.registry.served import Served, code, record, text_of


@pytest.mark.parametrize("level, compatible, incompatible", [
    ("BACKWARD", record("R", "a", ("b", "int", 1)), record("R", "a", "b")),
    ("FORWARD", record("R", "a", "b"), record("R", "b")),
    ("FULL", record("R", "a", ("b", "int", 1)), record("R", "a", "b"))])
def test_levels_decide_the_direction(client, subject, level, compatible, incompatible):
    client.put(f"/config/{subject}", {"compatibility": level.lower()})
    client.register(subject, record("R", "a"))
    path = f"/compatibility/subjects/{subject}/versions"
    for schema, expected in ((compatible, True), (incompatible, False)):
        for where in (path, f"{path}/latest", f"{path}/1"):
            status, answer = client.post(where, {"schema": str(schema).replace("'", '"')})
            assert (status, answer["is_compatible"]) == (200, expected)
            assert ("messages" in answer) is not expected


def test_transitive_levels_compare_all_versions(client, subject):
    client.put(f"/config/{subject}", {"compatibility": "NONE"})
    client.register(subject, '"string"')
    client.register(subject, '"int"')
    path = f"/compatibility/subjects/{subject}/versions"
    for level, expected in (("BACKWARD", True), ("BACKWARD_TRANSITIVE", False), ("NONE", True)):
        client.put(f"/config/{subject}", {"compatibility": level})
        assert client.post(path, {"schema": '"long"'})[1]["is_compatible"] is expected


def test_groups_limit_what_is_compared(client, subject):
    client.put(f"/config/{subject}", {"compatibilityGroup": "major", "compatibility": "BACKWARD"})
    client.register(subject, '"string"', metadata={"properties": {"major": "1"}})
    assert code(client.post(f"/subjects/{subject}/versions", {"schema": '"int"'})) == (409, 409)
    client.register(subject, '"int"', metadata={"properties": {"major": "2"}})


def test_verbose_checks_name_the_place_of_a_difference(client, subject):
    client.register(subject, record("R", "a"))
    path = f"/compatibility/subjects/{subject}/versions/latest"
    reason = "reader type: int not compatible with writer type: string"
    body = {"schema": text_of(record("R", ("a", "int")))}
    assert client.post(path, body)[1]["messages"] == [reason]
    assert client.post(f"{path}?verbose=true", body)[1]["messages"] == [
        f"{reason}, at /fields/0/type"]


def test_verbose_checks_explain_invalid_schemas(client, subject):
    client.register(subject, '"string"')
    path = f"/compatibility/subjects/{subject}/versions/latest"
    assert code(client.post(path, {"schema": '"x"'})) == (422, 42201)
    answer = client.post(f"{path}?verbose=true", {"schema": '"x"'})[1]
    assert answer["is_compatible"] is False and "Undefined schema" in answer["messages"][0]
    assert client.post(f"{path}?verbose=true", {"schema": '"string"'}) == (
        200, {"is_compatible": True, "messages": []})
    for name in (subject, f"{subject}-absent"):
        assert code(client.post(f"/compatibility/subjects/{name}/versions/9",
                                {"schema": '"string"'})) == (404, 40402)
    assert client.post(f"/compatibility/subjects/{subject}-absent/versions/latest",
                       {"schema": '"string"'}) == (200, {"is_compatible": True})


def test_configs_are_set_merged_and_deleted(client, subject):
    assert code(client.get(f"/config/{subject}")) == (404, 40408)
    assert client.get(f"/config/{subject}?defaultToGlobal=true")[1] == client.get("/config")[1]
    assert client.put(f"/config/{subject}", {"compatibility": "full"}) == (
        200, {"compatibility": "FULL"})
    client.put(f"/config/{subject}", {"normalize": True})
    assert client.get(f"/config/{subject}") == (
        200, {"compatibilityLevel": "FULL", "normalize": True})
    client.put(f"/config/{subject}", {"normalize": None})
    assert client.delete(f"/config/{subject}") == (200, {"compatibilityLevel": "FULL"})
    assert code(client.delete(f"/config/{subject}")) == (404, 40401)


@pytest.mark.parametrize("body, expected", [
    ({"compatibility": "x"}, (422, 42203)), ({}, (422, 42203)),
    ({"normalize": "x"}, (422, 422)), ({"alias": 1}, (422, 422)),
    ({"defaultMetadata": {"tags": 1}}, (422, 42210)),
    ({"overrideRuleSet": {"domainRules": [{}]}}, (422, 42210))])
def test_configs_that_are_refused(client, subject, body, expected):
    assert code(client.put(f"/config/{subject}", body)) == expected


def test_an_alias_redirects_reads_and_writes(client, subject):
    id_ = client.register(subject, '"string"')
    client.put(f"/config/{subject}-alias", {"alias": subject})
    assert client.get(f"/subjects/{subject}-alias/versions/1")[1]["id"] == id_
    assert client.register(f"{subject}-alias", '"string"') == id_
    shown = client.get(f"/schemas?aliases=true&subjectPrefix={subject}")[1]
    assert {row["subject"] for row in shown} == {subject, f"{subject}-alias"}


def test_a_context_has_ids_and_settings_of_its_own(client, context, subject):
    path = f"/contexts/{context}"
    assert client.put(f"{path}/config", {"compatibility": "NONE"})[0] == 200
    name = f":{context}:{subject}"
    id_ = client.register(name, '"string"')
    assert id_ == 1
    client.register(name, '"int"')
    assert client.get(f"{path}/subjects") == (200, [name])
    assert client.get(f"{path}/subjects/{subject}/versions") == (200, [1, 2])
    assert client.get(f"{path}/schemas/ids/1") == (200, {"schema": '"string"'})
    assert client.get(f"/schemas/ids/2?subject={name}")[1]["schema"] == '"int"'
    assert client.get(f"{path}/config")[1]["compatibilityLevel"] == "NONE"
    assert context in client.get("/contexts")[1]
    # A subject that the default context lacks is found in another one.
    assert client.get(f"/subjects/{subject}/versions/1")[1]["subject"] == name
    assert code(client.delete(f"/contexts/{context}")) == (422, 42211)
    client.delete(f"{path}/subjects/{subject}")
    client.delete(f"{path}/subjects/{subject}?permanent=true")
    assert client.delete(f"/contexts/{context}") == (204, None)
    assert context not in client.get("/contexts")[1]


def test_read_only_subjects_refuse_changes(client, subject):
    client.register(subject, '"string"')
    assert code(client.get(f"/mode/{subject}")) == (404, 40409)
    assert client.get(f"/mode/{subject}?defaultToGlobal=true") == (200, {"mode": "READWRITE"})
    assert client.put(f"/mode/{subject}", {"mode": "READONLY"}) == (200, {"mode": "READONLY"})
    body = {"schema": '["string"]'}
    assert code(client.post(f"/subjects/{subject}/versions", body)) == (422, 42205)
    assert code(client.delete(f"/subjects/{subject}")) == (422, 42205)
    assert client.delete(f"/mode/{subject}") == (200, {"mode": "READONLY"})
    assert code(client.delete(f"/mode/{subject}")) == (404, 40401)
    assert client.post(f"/subjects/{subject}/versions", body)[0] == 200
    assert code(client.put(f"/mode/{subject}", {"mode": "x"})) == (422, 42204)


def test_import_mode_removes_nothing_if_a_deleted_version_is_referenced(client, context):
    path = f"/contexts/{context}"
    client.register(f":{context}:a", '"string"')
    client.register(f":{context}:b", {"type": "fixed", "name": "F", "size": 1})
    assert client.post(f"{path}/subjects/c/versions", {
        "schema": json.dumps({"type": "array", "items": "F"}),
        "references": [{"name": "F", "subject": "b", "version": 1}]})[0] == 200
    for subject in "cba":
        assert client.delete(f"{path}/subjects/{subject}")[0] == 200
    assert code(client.put(f"{path}/mode", {"mode": "IMPORT"})) == (422, 42206)
    for subject in "abc":
        assert client.get(f"{path}/subjects/{subject}/versions?deleted=true") == (200, [1])


def test_import_mode_accepts_ids_and_versions(client, context, subject):
    path = f"/contexts/{context}"
    name = f":{context}:{subject}"
    client.register(name, '"string"')
    assert code(client.put(f"{path}/mode", {"mode": "IMPORT"})) == (422, 42205)
    client.delete(f"{path}/subjects/{subject}")
    assert client.put(f"{path}/mode", {"mode": "IMPORT"})[0] == 200
    assert code(client.get(f"{path}/subjects/{subject}/versions?deleted=true")) == (404, 40401)
    assert client.register(name, '"int"', id=77, version=5) == 77
    assert client.register(name, '"string"', id=78, version=6) == 78
    assert client.register(name, '"int"', id=77, version=5) == 77
    assert client.get(f"{path}/subjects/{subject}/versions") == (200, [5, 6])
    body = {"schema": '"long"', "id": 77, "version": 7}
    assert code(client.post(f"{path}/subjects/{subject}/versions", body)) == (422, 42205)
    assert code(client.post(f"{path}/subjects/{subject}/versions",
                            {"schema": '"long"'})) == (422, 42205)
    assert client.delete(f"{path}/mode?recursive=true") == (200, {"mode": "IMPORT"})


def test_settings_of_the_server(registry_broker, topic):
    with Served({"bootstrap.servers": registry_broker.bootstrap}, topic=topic,
                compatibility_level="full", mode_mutability="false", schema_bytes_max=1000,
                write_timeout_ms=5000) as one:
        client = one.client()
        assert client.get("/config") == (200, {"compatibilityLevel": "FULL"})
        assert code(client.put("/mode", {"mode": "READONLY"})) == (422, 42205)
        assert client.get("/mode") == (200, {"mode": "READWRITE"})
        body = {"schema": f'{{"type":"string","x":"{"x" * 1000}"}}'}
        assert code(client.post("/subjects/a/versions", body)) == (422, 42209)
        assert client.put("/config", {"compatibility": "NONE"})[0] == 200
        assert client.delete("/config") == (200, {"compatibilityLevel": "NONE"})
