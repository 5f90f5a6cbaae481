"""The console with Apache Kafka: the same pages, without what only brokerd has."""

import json

import pytest

from tests.console.served import Served

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def served(kafka):
    with Served({"kafka": {"bootstrap.servers": f"127.0.0.1:{kafka.port}"}}) as one:
        yield one


@pytest.fixture
def topic(client):
    assert client.post("/topics/new", {"name": "console-test", "partitions": "2"}).status == 303
    yield "console-test"
    assert client.post("/topics/console-test/delete", {"name": "console-test"}).status == 303


def test_pages_of_a_topic_and_its_broker_work(client, topic):
    response = client.post(f"/topics/{topic}/produce", {
        "key": "k", "key_format": "text", "value": "v", "value_format": "text", "partition": "0",
        "compression": "lz4"})
    assert response.status == 303
    for path in ("/", "/brokers", "/topics", f"/topics/{topic}", f"/topics/{topic}/settings",
                 f"/topics/{topic}/purge", f"/topics/{topic}/produce?partition=0&offset=0"):
        response = client.get(path)
        assert response.status == 200 and "could not be read" not in response.text, path
    row, = json.loads(client.get(f"/topics?q={topic}&format=json").text)["rows"]
    assert (row["partitions"], row["records"]) == (2, 1) and row["bytes"] > 0
    broker = json.loads(client.get("/brokers?format=json").text)["rows"][0]
    assert client.get(f"/brokers/{broker['broker']}/settings").status == 200


def test_a_setting_of_a_topic_is_changed_after_its_preview(client, topic):
    from tests.console.views.test_configs import apply, send, value

    path = f"/topics/{topic}/settings"
    shown = send(client, path, {"name": "retention.ms", "value": "1000"})
    assert "<ins>1000</ins>" in shown.text
    assert apply(client, path, shown.text).status == 303
    assert value(client, path, "retention.ms") == ("1000", "topic")


def test_a_cluster_of_kafka_is_not_taken_for_brokerd(served, client):
    client.get("/")
    session = next(iter(served.console.sessions._sessions.values()))
    assert not session.clusters["kafka"].is_brokerd


def test_records_transactions_and_share_groups_of_kafka_have_their_pages(kafka, client, topic):
    from pylog.client import Producer

    settings = {"bootstrap_servers": f"127.0.0.1:{kafka.port}"}
    with Producer(**settings, transactional_id="console-tx") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"1", partition=0)
        producer.flush()
        assert "open transaction</summary>" in client.get(f"/topics/{topic}/records/0/0").text
        rows = json.loads(client.get("/transactions?format=json").text)["rows"]
        assert ("console-tx", "Ongoing") in [(row["id"], row["state"]) for row in rows]
        assert "There is none." in client.get(f"/topics/{topic}/hanging").text
        assert client.post("/transactions/console-tx/abort", {"name": "console-tx"}).status == 303
        producer.close()
    assert "aborted transaction</summary>" in client.get(f"/topics/{topic}/records/0/0").text
    page = client.get("/topics/__transaction_state/records?limit=20").text
    assert "console-tx" in page and "TransactionLogValue" in page
