"""Quotas: set, list, change and remove."""

import json

import pytest

FORM = {"user": "ann", "client-id": "", "ip": "", "quota": "producer_byte_rate",
        "value": "1048576", "step": "set"}


def rows_of(client):
    return json.loads(client.get("/quotas?format=json").text)["rows"]


@pytest.mark.parametrize("entity", [
    {}, {"user": "<default>"}, {"client-id": "app"}, {"user": "<b>", "client-id": "app"},
    {"user": "", "ip": "10.0.0.1", "quota": "connection_creation_rate"}])
def test_a_quota_is_set_listed_and_removed(client, entity):
    form = {**FORM, **entity}
    assert client.post("/quotas/new", form).status == 303
    row, = rows_of(client)
    assert row == {**{name: form[name] for name in ("user", "client-id", "ip", "quota")},
                   "value": 1048576.0}
    text = client.get("/quotas").text
    assert "<b>" not in text and "/quotas/new?user=" in text
    assert client.post("/quotas/new", {**form, "step": "remove", "value": ""}).status == 303
    assert rows_of(client) == []


@pytest.mark.parametrize("wrong", [
    {"user": ""}, {"value": ""}, {"value": "nan"}, {"value": "-1"}, {"quota": "speed"},
    {"ip": "10.0.0.1"}, {"quota": "connection_creation_rate"}])
def test_a_form_that_is_not_valid_is_an_error(client, wrong):
    assert client.post("/quotas/new", {**FORM, **wrong}).status == 400
    assert rows_of(client) == []
