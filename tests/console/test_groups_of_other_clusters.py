"""Groups and ACLs of Apache Kafka, without what only brokerd has."""

import asyncio
import json

import pytest

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import NewTopic
from pylog.client.types import TopicPartition
from tests.console.served import Served

pytestmark = pytest.mark.kafka
TOPIC, GROUP = "console-groups", "console-group"


@pytest.fixture(scope="module")
def served(kafka):
    address = f"127.0.0.1:{kafka.port}"

    async def prepare(is_start):
        async with Admin(bootstrap_servers=address) as admin:
            if is_start:
                await admin.create_topics([NewTopic(TOPIC, 2)])
                await admin.alter_consumer_group_offsets(GROUP, {TopicPartition(TOPIC, 0): 0})
            else:
                await admin.delete_topics([TOPIC])

    asyncio.run(prepare(True))
    with Served({"kafka": {"bootstrap.servers": address}}) as one:
        yield one
    asyncio.run(prepare(False))


def test_a_group_is_listed_shown_explained_reset_and_deleted(client):
    row, = json.loads(client.get(f"/groups?q={GROUP}&format=json").text)["rows"]
    assert (row["type"], row["state"], row["lag_records"]) == ("classic", "Empty", 0)
    rows = json.loads(client.get(f"/topics/{TOPIC}/groups?format=json").text)["rows"]
    assert [one["group"] for one in rows] == [GROUP]
    text = client.get(f"/groups/{GROUP}").text
    assert "could not be read" not in text and "Rebalances" not in text
    assert "It does not lag" in client.get(f"/groups/{GROUP}/explain").text
    assert client.get(f"/groups/{GROUP}/history").status == 404
    path = f"/groups/{GROUP}/offsets"
    assert "Commit 1 offsets" in client.post(path, {"step": "preview", "way": "latest"}).text
    plan = json.dumps([[TOPIC, 0, 0, 0]])
    assert client.post(path, {"step": "apply", "way": "latest", "plan": plan}).status == 303
    assert client.post(f"/groups/{GROUP}/delete", {"name": GROUP}).status == 303
    assert json.loads(client.get(f"/groups?q={GROUP}&format=json").text)["rows"] == []


def test_the_page_of_acls_works_with_or_without_an_authorizer(client):
    response = client.get("/acls")
    assert response.status == 200 and "ACLs" in response.text
