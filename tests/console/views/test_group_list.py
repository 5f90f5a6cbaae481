"""The lists of groups: filters, order, lag of the visible rows, JSON and CSV."""

import asyncio
import json

import pytest

from pylog.client.admin.admin import Admin
from pylog.client.types import TopicPartition

COMMITTED = {"app-a": 1, "app-b": 3, "<b>bold</b>": 0}


@pytest.fixture(scope="module", autouse=True)
def committed(broker):
    broker.create_topic("orders", partitions=2).append(*[b"x"] * 4, partition=0)
    broker.create_topic("other")

    async def commit():
        async with Admin(bootstrap_servers=broker.bootstrap) as admin:
            for name, offset in COMMITTED.items():
                await admin.alter_consumer_group_offsets(
                    name, {TopicPartition("orders", 0): offset})
            await admin.alter_consumer_group_offsets("elsewhere", {TopicPartition("other", 0): 0})

    asyncio.run(commit())


def rows_of(client, path):
    response = client.get(f"{path}{'&' if '?' in path else '?'}format=json")
    assert response.status == 200, response.text
    return json.loads(response.text)["rows"]


def test_the_list_shows_the_lag_of_each_group(client):
    lags = {row["group"]: row["lag_records"] for row in rows_of(client, "/groups")}
    assert lags == {"app-a": 3, "app-b": 1, "<b>bold</b>": 4, "elsewhere": 0}


def test_the_list_is_filtered_and_ordered_by_the_server(client):
    rows = rows_of(client, "/groups?q=APP&sort=-lag_records")
    assert [row["group"] for row in rows] == ["app-a", "app-b"]
    assert rows_of(client, "/groups?state=Stable") == []
    assert rows_of(client, "/groups?type=share") == []
    assert len(rows_of(client, "/groups?type=classic&state=Empty")) == 4


def test_only_visible_groups_are_read(client):
    response = client.get("/groups?size=1&format=json").text
    assert json.loads(response)["total"] == 4 and len(json.loads(response)["rows"]) == 1


def test_an_unknown_filter_is_an_error(client):
    assert client.get("/groups?state=Nonsense").status == 400


def test_group_names_are_escaped(client):
    text = client.get("/groups").text
    assert "<b>bold" not in text and "&lt;b&gt;bold" in text
    assert "/groups/%3Cb%3Ebold%3C%2Fb%3E" in text


def test_groups_of_a_topic_have_committed_offsets_of_it(client):
    rows = rows_of(client, "/topics/orders/groups")
    assert {row["group"]: row["lag_records"] for row in rows} == {
        "app-a": 3, "app-b": 1, "<b>bold</b>": 4}
    assert "app-a" in client.get("/topics/orders/groups").text


def test_groups_of_a_missing_topic_are_an_error(client):
    assert client.get("/topics/no-such-topic/groups").status == 404
