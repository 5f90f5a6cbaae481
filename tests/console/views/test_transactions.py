"""Transactions: the list, one of them, and aborts."""

import json

import pytest

from pylog.client import Admin, NewTopic, Producer, TopicPartition
from pylog.client.errors import KafkaError

TOPIC = "paid"


@pytest.fixture(scope="module")
def topic(broker):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, 1)])
    return TOPIC


@pytest.fixture
def opened(broker, topic, request):
    """Return the id of an open transaction, and its producer."""
    name = f"payments/{request.node.name[:20]}"
    producer = Producer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"1")
    producer.flush()
    yield name, producer
    try:
        producer.abort_transaction()
    except KafkaError:
        pass
    producer.close()


def rows(client, query=""):
    return {row["id"]: row for row in json.loads(
        client.get(f"/transactions?format=json{query}").text)["rows"]}


def path(name, part=""):
    return f"/transactions/{name.replace('/', '%2F')}{part}"


def test_open_transactions_are_listed_and_described(client, opened):
    name, _ = opened
    row = rows(client, "&state=Ongoing")[name]
    assert row["state"] == "Ongoing" and row["partitions"] == 1 and row["started_ms"] > 0
    assert client.get("/transactions?state=nonsense").status == 400
    page = client.get(path(name)).text
    assert "Ongoing" in page and f"/topics/{TOPIC}" in page and "Abort this transaction" in page
    assert client.get(path("nothing")).status == 404


def test_a_transaction_is_aborted_only_if_its_id_was_typed(served, client, opened):
    name, producer = opened
    assert "not the transactional id" in client.post(path(name, "/abort"), {"name": "x"}).text
    assert rows(client)[name]["state"] == "Ongoing"
    assert client.post(path(name, "/abort"), {"name": name}).status == 303
    assert rows(client)[name]["state"] in ("CompleteAbort", "PrepareAbort", "Empty")
    line = [one for one in served.console.audit.lines
            if one["operation"] == "transactions.abort"][-1]
    assert line["id"] == name and line["outcome"] == "status 303" or line["outcome"] == "done"
    with pytest.raises(KafkaError):
        producer.commit_transaction()


def test_an_open_transaction_with_a_coordinator_is_not_hanging(client, opened):
    assert "There is none." in client.get(f"/topics/{TOPIC}/hanging").text
    form = {"partition": "0", "producer_id": "1", "start": "0"}
    page = client.get(f"/topics/{TOPIC}/hanging")
    assert page.status == 200
    assert client.post(f"/topics/{TOPIC}/hanging", form, page="/preferences").status in (403, 409)


def test_a_transaction_without_a_coordinator_is_found_and_aborted(broker, client, opened,
                                                                 monkeypatch):
    """The list of the coordinators does not contain it, as after a loss of their data."""
    from pylog.client.admin.admin import Admin as Administration

    async def none(self, *given, **more):
        return []

    monkeypatch.setattr(Administration, "list_transactions", none)
    page = client.get(f"/topics/{TOPIC}/hanging").text
    assert "There is none." not in page, page
    form = {name: page.partition(f'name="{name}" value="')[2].partition('"')[0]
            for name in ("partition", "producer_id", "start")}
    assert client.post(f"/topics/{TOPIC}/hanging", form).status == 303
    assert "There is none." in client.get(f"/topics/{TOPIC}/hanging").text
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert all(one.transaction_start < 0
                   for one in admin.describe_producers(TopicPartition(TOPIC, 0)))
