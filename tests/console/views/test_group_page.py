"""The page of one group: members, lag in records and in time, live lag, reasons, rebalances."""

import asyncio
import http.client
import json

import pytest

from pylog.client import Consumer
from pylog.client.admin.admin import Admin
from pylog.client.types import TopicPartition
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.console.served import WAIT_S, Served


@pytest.fixture(scope="module")
def broker():
    with Broker(settings={"metrics.listener": f"127.0.0.1:{free_port()}"}) as one:
        one.create_topic("orders", partitions=2).append(*[b"x"] * 4, partition=0)

        async def commit():
            async with Admin(bootstrap_servers=one.bootstrap) as admin:
                for name in ("stuck", "a/b <i>"):
                    await admin.alter_consumer_group_offsets(
                        name, {TopicPartition("orders", 0): 1})

        asyncio.run(commit())
        yield one


def test_the_page_shows_lag_in_records_and_time(client):
    response = client.get("/groups/stuck")
    assert response.status == 200
    assert "The group has no members." in response.text
    row, = json.loads(client.get("/groups/stuck?format=json").text)["rows"]
    assert (row["committed_offset"], row["end_offset"], row["lag_records"]) == (1, 4, 3)
    assert row["lag_seconds"] > 0


def test_a_group_with_a_slash_and_markup_in_its_name_has_a_page(client):
    response = client.get("/groups/a%2Fb%20%3Ci%3E")
    assert response.status == 200 and "<i>" not in response.text
    assert "a/b &lt;i&gt;" in response.text


def test_an_unknown_group_is_an_error_page(client):
    assert client.get("/groups/no-such-group").status == 404


def test_members_and_their_partitions_are_shown(broker, client):
    with Consumer(bootstrap_servers=broker.bootstrap, group_id="busy", client_id="reader-7",
                  auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        assert consumer.poll(WAIT_S)
        text = client.get("/groups/busy").text
    assert "reader-7" in text and "orders: 0, 1" in text


def test_the_chart_appears_with_the_second_sample(served, client):
    assert "<svg" not in served.client().get("/groups/stuck").text
    served.clock.now_s += 10
    text = client.get("/groups/stuck").text
    assert "<polyline points=" in text and "highest 3" in text


def test_the_stream_sends_the_lag_as_html(served):
    client = served.client()
    client.get("/")
    connection = http.client.HTTPConnection(client.host, timeout=WAIT_S)
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    connection.request("GET", "/groups/stuck/stream", headers={"Cookie": cookie})
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert response.readline() == b"event: html\n"
    html = json.loads(response.readline().removeprefix(b"data: "))["html"]
    assert "Lag, records" in html and "<dd>3</dd>" in html
    connection.close()


def test_a_stuck_group_is_explained_in_a_sentence_with_numbers(client):
    text = client.get("/groups/stuck/explain").text
    assert "The group has no members (Empty), and 3 records are not committed." in text


def test_rebalances_are_listed_with_their_cause(broker, client):
    with Consumer(bootstrap_servers=broker.bootstrap, group_id="late", client_id="reader-8",
                  group_protocol="classic", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        assert consumer.poll(WAIT_S)
        text = client.get("/groups/late/history").text
    assert "joined" in text and "reader-8" in text


def test_a_broker_without_an_endpoint_is_named(broker):
    with Broker() as plain:
        plain.create_topic("t")

        async def commit():
            async with Admin(bootstrap_servers=plain.bootstrap) as admin:
                await admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): 0})

        asyncio.run(commit())
        with Served({"test": {"bootstrap.servers": plain.bootstrap}}) as served:
            client = served.client()
            assert "does not report the rebalances" in client.get("/groups/g/history").text
            assert "It does not lag" in client.get("/groups/g/explain").text
