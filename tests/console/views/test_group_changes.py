"""Resetting and deleting offsets after a preview, and deleting a group."""

import asyncio
import html
import re

import pytest

from pylog.client import Consumer
from pylog.client.admin.admin import Admin
from pylog.client.types import TopicPartition
from tests.console.served import WAIT_S, Served

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def run(broker, work):
    async def session():
        async with Admin(bootstrap_servers=broker.bootstrap) as admin:
            return await work(admin)

    return asyncio.run(session())


def offsets_of(broker, group):
    found = run(broker, lambda admin: admin.list_consumer_group_offsets(group))
    return {part: row.offset for part, row in found.items()}


@pytest.fixture(scope="module", autouse=True)
def topic(broker):
    topic = broker.create_topic("orders", partitions=2)
    topic.append(*[b"x"] * 9, partition=0)
    topic.append(*[b"x"] * 5, partition=1)
    return topic


@pytest.fixture
def group(broker, request):
    name = re.sub(r"\W", "-", request.node.name)
    run(broker, lambda admin: admin.alter_consumer_group_offsets(name, {T0: 4, T1: 5}))
    return name


def previewed(client, group, **form):
    """Return the preview's page, and the fields of its button's form."""
    text = client.post(f"/groups/{group}/offsets", {"step": "preview", **form}).text
    plan = re.search(r'name="plan" value="([^"]*)"', text)
    return text, {"step": "apply", "plan": html.unescape(plan.group(1)) if plan else "", **form}


@pytest.mark.parametrize(("form", "expected"), [
    ({"way": "earliest"}, {T0: 0, T1: 0}), ({"way": "latest"}, {T0: 9, T1: 5}),
    ({"way": "offset", "value": "7", "topic": "orders", "partitions": "0"}, {T0: 7, T1: 5}),
    ({"way": "shift", "value": "-2"}, {T0: 2, T1: 3}),
    ({"way": "time", "value": "2000-01-01T00:00Z"}, {T0: 0, T1: 0}),
    ({"way": "delete", "topic": "orders", "partitions": "1"}, {T0: 4})])
def test_a_reset_changes_offsets_only_after_its_preview(broker, client, form, expected):
    name = f"reset-{form['way']}"
    run(broker, lambda admin: admin.alter_consumer_group_offsets(name, {T0: 4, T1: 5}))
    text, apply = previewed(client, name, **form)
    assert "Preview" in text and offsets_of(broker, name) == {T0: 4, T1: 5}
    assert client.post(f"/groups/{name}/offsets", apply).status == 303
    assert offsets_of(broker, name) == expected


def test_an_offset_outside_the_log_is_moved_to_its_end(client, group):
    text, _ = previewed(client, group, way="offset", value="100", topic="orders", partitions="0")
    assert "100 is outside the log" in text


def test_a_group_that_committed_since_the_preview_gets_a_new_preview(broker, client, group):
    _, apply = previewed(client, group, way="earliest")
    run(broker, lambda admin: admin.alter_consumer_group_offsets(group, {T0: 6}))
    response = client.post(f"/groups/{group}/offsets", apply)
    assert response.status == 200 and "since the preview" in response.text
    assert offsets_of(broker, group) == {T0: 6, T1: 5}


def test_offsets_of_a_group_with_members_are_not_changed(broker, client):
    with Consumer(bootstrap_servers=broker.bootstrap, group_id="live",
                  auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        assert consumer.poll(WAIT_S)
        consumer.commit()
        before = offsets_of(broker, "live")
        text, _ = previewed(client, "live", way="earliest")
        assert "Stop them first" in text and 'value="apply"' not in text
        plan = f'[["orders", 0, {before[T0]}, 1]]'
        response = client.post("/groups/live/offsets", {"step": "apply", "plan": plan})
        assert "The group has members" in response.text
        assert offsets_of(broker, "live") == before


@pytest.mark.parametrize("form", [
    {"way": "sideways"}, {"way": "offset", "value": "x"}, {"way": "time", "value": "noon"},
    {"way": "earliest", "topic": "orders", "partitions": "7"}, {"step": "apply", "plan": "[]"},
    {"step": "apply", "plan": '[["orders", 0, 1, -5]]'}])
def test_a_form_that_is_not_valid_is_an_error(client, group, form):
    assert client.post(f"/groups/{group}/offsets", {"step": "preview", **form}).status == 400


def test_a_group_is_deleted_if_its_name_is_typed(broker, client, group):
    assert "not that of the group" in client.post(
        f"/groups/{group}/delete", {"name": "other"}).text
    assert offsets_of(broker, group)
    assert client.post(f"/groups/{group}/delete", {"name": group}).status == 303
    assert client.get(f"/groups/{group}").status == 404


def test_a_read_only_console_has_no_forms_for_groups(broker, group):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                console_read_only="true") as served:
        client = served.client()
        assert "/offsets" not in client.get(f"/groups/{group}").text
        assert client.get(f"/groups/{group}/offsets").status == 403
        assert client.get(f"/groups/{group}/delete").status == 403
