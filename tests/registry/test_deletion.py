"""Soft and permanent deletion."""

from tests.registry.served import code, record


def two_versions(client, subject):
    client.put(f"/config/{subject}", {"compatibility": "NONE"})
    return client.register(subject, '"int"'), client.register(subject, '"long"')


def test_a_deleted_version_is_hidden_but_its_id_resolves(client, subject):
    first, second = two_versions(client, subject)
    assert client.delete(f"/subjects/{subject}/versions/2") == (200, 2)
    assert client.get(f"/subjects/{subject}/versions") == (200, [1])
    assert client.get(f"/subjects/{subject}/versions?deleted=true") == (200, [1, 2])
    assert client.get(f"/subjects/{subject}/versions?deletedAsNegative=true") == (200, [1, -2])
    assert client.get(f"/subjects/{subject}/versions?deletedOnly=true") == (200, [2])
    assert code(client.get(f"/subjects/{subject}/versions/2")) == (404, 40402)
    assert client.get(f"/subjects/{subject}/versions/2?deleted=true")[0] == 200
    assert client.get(f"/schemas/ids/{second}")[0] == 200
    assert {"subject": subject, "version": 2} not in client.get(
        f"/schemas/ids/{second}/versions")[1]


def test_permanent_deletion_needs_a_soft_one_first(client, subject):
    two_versions(client, subject)
    assert code(client.delete(f"/subjects/{subject}/versions/1?permanent=true")) == (404, 40407)
    assert code(client.delete(f"/subjects/{subject}?permanent=true")) == (404, 40405)
    assert client.delete(f"/subjects/{subject}/versions/1") == (200, 1)
    assert code(client.delete(f"/subjects/{subject}/versions/1")) == (404, 40406)
    assert client.delete(f"/subjects/{subject}/versions/1?permanent=true") == (200, 1)
    assert code(client.delete(f"/subjects/{subject}/versions/1?permanent=true")) == (404, 40402)


def test_a_deleted_subject_returns_with_higher_versions_and_without_its_config(client, subject):
    first, _ = two_versions(client, subject)
    assert client.delete(f"/subjects/{subject}") == (200, [1, 2])
    assert code(client.delete(f"/subjects/{subject}")) == (404, 40404)
    assert code(client.get(f"/subjects/{subject}/versions")) == (404, 40401)
    assert subject not in client.get("/subjects")[1]
    assert subject in client.get("/subjects?deleted=true")[1]
    assert subject in client.get("/subjects?deletedOnly=true")[1]
    assert code(client.get(f"/config/{subject}")) == (404, 40408)
    assert client.register(subject, '"int"') == first
    assert client.get(f"/subjects/{subject}/versions") == (200, [3])
    # The older version with the same id is gone: nothing references it.
    assert client.get(f"/subjects/{subject}/versions?deleted=true") == (200, [2, 3])


def test_permanent_deletion_of_a_subject_forgets_it(client, subject):
    id_ = client.register(subject, record(f"G{subject.replace('-', '')}"))
    client.delete(f"/subjects/{subject}")
    assert client.delete(f"/subjects/{subject}?permanent=true") == (200, [1])
    assert code(client.get(f"/schemas/ids/{id_}")) == (404, 40403)
    assert code(client.delete(f"/subjects/{subject}")) == (404, 40401)
    assert subject not in client.get("/subjects?deleted=true")[1]
    other = client.register(subject, record(f"H{subject.replace('-', '')}"))
    assert other > id_, "an id is never given out twice"


def test_what_is_referenced_cannot_be_deleted(client, subject):
    client.register(f"{subject}-base", {"type": "fixed", "name": "F", "size": 2})
    client.register(subject, record("R", ("a", "F")), references=[
        {"name": "F", "subject": f"{subject}-base", "version": 1}])
    assert code(client.delete(f"/subjects/{subject}-base")) == (422, 42206)
    assert code(client.delete(f"/subjects/{subject}-base/versions/1")) == (422, 42206)
    client.delete(f"/subjects/{subject}")
    assert client.delete(f"/subjects/{subject}-base") == (200, [1])
    # The deleted schema could not be read any more.
    assert code(client.delete(f"/subjects/{subject}-base?permanent=true")) == (422, 42206)
    assert client.delete(f"/subjects/{subject}?permanent=true")[0] == 200
    assert client.delete(f"/subjects/{subject}-base?permanent=true")[0] == 200


def test_absent_subjects_and_versions(client, subject):
    assert code(client.delete(f"/subjects/{subject}")) == (404, 40401)
    assert code(client.delete(f"/subjects/{subject}/versions/1")) == (404, 40401)
    client.register(subject, '"int"')
    assert code(client.delete(f"/subjects/{subject}/versions/2")) == (404, 40402)
    assert code(client.delete(f"/subjects/{subject}/versions/x")) == (422, 42202)
    assert client.delete(f"/subjects/{subject}/versions/latest") == (200, 1)
