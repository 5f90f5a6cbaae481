"""The topic list, one topic, and creating, purging and deleting topics."""

import csv
import io
import json

import pytest

from tests.console.served import Served


@pytest.fixture(scope="module")
def orders(broker):
    topic = broker.create_topic("orders", partitions=3)
    topic.append(b"one", b"two", b"three")
    return topic


def test_list_shows_topics_with_partitions_offsets_and_sizes(client, orders):
    rows = {row["topic"]: row for row in json.loads(client.get("/topics?format=json").text)["rows"]}
    assert rows["orders"] == {"topic": "orders", "partitions": 3, "replicas": 1, "problems": 0,
                              "records": 3, "bytes": rows["orders"]["bytes"],
                              "lag_records": None, "lag_group": None}
    assert rows["orders"]["bytes"] > 0
    text = client.get("/topics").text
    assert 'href="/topics/orders"' in text


def test_list_filters_sorts_and_pages_on_the_server(client, broker, orders):
    for number in range(4):
        broker.create_topic(f"many-{number}", partitions=number + 1)
    found = json.loads(client.get("/topics?q=MANY&sort=-partitions&size=2&format=json").text)
    assert [row["topic"] for row in found["rows"]] == ["many-3", "many-2"]
    assert found["total"] == 4
    found = json.loads(client.get("/topics?q=many&sort=-partitions&size=2&page=2&format=json").text)
    assert [row["topic"] for row in found["rows"]] == ["many-1", "many-0"]
    by_size = json.loads(client.get("/topics?sort=-bytes&format=json").text)["rows"]
    assert by_size[0]["topic"] == "orders"


def test_list_as_csv_has_the_same_rows(client, orders):
    text = client.get("/topics?q=orders&format=csv").text
    head, row = csv.reader(io.StringIO(text))
    assert head[:2] == ["topic", "partitions"] and row[:2] == ["orders", "3"]


def test_unknown_sort_and_page_fall_back_to_the_default(client, orders):
    assert client.get("/topics?sort=nonsense&page=99&size=-1").status == 200


def test_topic_page_lists_partitions_with_leaders_and_offsets(client, orders):
    found = json.loads(client.get("/topics/orders?format=json").text)["rows"]
    assert [(row["partition"], row["leader"], row["first"], row["end"]) for row in found] == [
        (0, 1, 0, 3), (1, 1, 0, 0), (2, 1, 0, 0)]
    assert "not in sync" not in client.get("/topics/orders").text


def test_unknown_topic_has_an_error_page(client):
    response = client.get("/topics/absent")
    assert response.status == 404 and "absent" in response.text


def test_create_makes_a_topic_with_partitions_and_settings(client, broker):
    response = client.post("/topics/new", {
        "name": "made", "partitions": "2", "replicas": "",
        "settings": "retention.ms=60000\r\ncleanup.policy=compact"})
    assert (response.status, response.headers["Location"]) == (303, "/topics/made")
    page = client.get("/topics/made").text
    assert "The topic made was created." in page and "retention.ms" in page and "60000" in page
    assert broker.topic("made").partitions == 2


@pytest.mark.parametrize("form", [
    {"name": "bad name"}, {"name": ""}, {"name": "x", "partitions": "0"},
    {"name": "x", "settings": "retention.ms"}, {"name": "x", "settings": "no.such.setting=1"}])
def test_a_rejected_creation_keeps_the_form(client, broker, form):
    response = client.post("/topics/new", {"partitions": "", "replicas": "", **form})
    assert response.status == 400
    assert "The topic was not created" in response.text
    assert "x" not in broker.topics()


def test_delete_needs_the_typed_name(client, broker):
    broker.create_topic("doomed")
    assert client.post("/topics/doomed/delete", {"name": "doome"}).status == 400
    assert "doomed" in broker.topics()
    assert client.post("/topics/doomed/delete", {"name": "doomed"}).status == 303
    assert "doomed" not in broker.topics()


def test_purge_deletes_records_before_an_offset_or_all(client, broker):
    topic = broker.create_topic("full", partitions=2)
    topic.append(b"a", b"b", b"c")
    topic.append(b"d", partition=1)
    assert client.post("/topics/full/purge", {"name": "other"}).status == 400
    assert client.post("/topics/full/purge", {
        "name": "full", "partition": "0", "before": "2"}).status == 303
    assert topic.ends() == [(2, 3), (0, 1)]
    assert client.post("/topics/full/purge", {"name": "full"}).status == 303
    assert topic.ends() == [(3, 3), (1, 1)]


def test_changes_have_audit_lines_and_previews_do_not(client, served, broker):
    broker.create_topic("audited")
    served.console.audit.lines.clear()
    client.post("/topics/audited/delete", {"name": "wrong"})
    client.post("/topics/audited/delete", {"name": "audited"})
    line, = served.console.audit.lines
    assert (line["operation"], line["topic"], line["outcome"]) == ("topics.delete", "audited",
                                                                   "done")
    assert (line["principal"], line["host"]) == ("User:anonymous", "127.0.0.1")


def test_read_only_mode_rejects_changes_and_hides_their_links(broker, orders):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}}, console_read_only="true") as one:
        client = one.client()
        for path in ("/topics/new", "/topics/orders/delete", "/topics/orders/purge"):
            assert client.get(path).status == 403, path
            assert path not in client.get("/topics").text + client.get("/topics/orders").text
        token = client.get("/preferences").text.split('name="csrf" value="')[1].split('"')[0]
        for path in ("/topics/new", "/topics/orders/delete", "/topics/orders/settings"):
            assert client.send("POST", path, {"csrf": token, "name": "orders"}).status == 403, path
    assert "orders" in broker.topics()


def test_a_topic_named_like_a_page_is_reachable(client, broker):
    broker.create_topic("new")
    assert 'href="/topics/%6Eew"' in client.get("/topics").text
    assert "<h1>Topic new</h1>" in client.get("/topics/%6Eew").text
    assert "Create a topic" in client.get("/topics/new").text
