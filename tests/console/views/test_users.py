"""SCRAM users: set a password, list, delete."""

import json
import re

import pytest


def rows_of(client):
    return json.loads(client.get("/users?format=json").text)["rows"]


def test_a_user_is_created_listed_and_deleted(served, client):
    served.console.audit.lines.clear()  # Of other tests.
    form = {"user": "<b>ann", "password": "s3cret-word", "mechanism": "SCRAM-SHA-256",
            "iterations": "4096"}
    assert client.post("/users/new", form).status == 303
    assert rows_of(client) == [
        {"user": "<b>ann", "mechanism": "SCRAM-SHA-256", "iterations": 4096}]
    assert "<b>" not in client.get("/users").text
    path = "/users/%3Cb%3Eann/delete"
    page = client.get(f"{path}?mechanism=SCRAM-SHA-256").text
    token = re.search(r'name="csrf" value="([^"]+)"', page).group(1)
    confirm = {"csrf": token, "mechanism": "SCRAM-SHA-256", "name": "other"}
    assert "not that of the user" in client.send("POST", path, confirm).text
    assert client.send("POST", path, {**confirm, "name": "<b>ann"}).status == 303
    assert rows_of(client) == []
    lines = [line for line in served.console.audit.lines
             if line["operation"].startswith("users.")]
    assert [line["operation"] for line in lines] == ["users.change", "users.delete"]
    assert "s3cret-word" not in str(lines)


@pytest.mark.parametrize("wrong", [
    {"user": ""}, {"password": ""}, {"mechanism": "PLAIN"}, {"iterations": "1"}])
def test_a_form_that_is_not_valid_is_an_error(client, wrong):
    form = {"user": "bob", "password": "x", "mechanism": "SCRAM-SHA-512", "iterations": "8192"}
    assert client.post("/users/new", {**form, **wrong}).status == 400
    assert rows_of(client) == []
