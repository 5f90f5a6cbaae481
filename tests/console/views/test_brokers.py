"""The broker list and one broker."""

import json


def test_list_shows_address_leaders_disk_and_state(client, broker):
    broker.create_topic("placed", partitions=2)
    row, = json.loads(client.get("/brokers?format=json").text)["rows"]
    assert (row["broker"], row["address"], row["roles"]) == (1, broker.bootstrap, "controller")
    assert row["leaders"] >= 2 and row["free"] > 0 and row["state"] == "answers"


def test_one_broker_shows_its_directories_and_replicas(client, broker):
    broker.create_topic("stored").append(b"x" * 1000)
    text = client.get("/brokers/1").text
    assert broker.log_dirs[0] in text and "stored" in text


def test_unknown_broker_has_an_error_page(client):
    assert client.get("/brokers/77").status == 404
    assert client.get("/brokers/x").status == 400


def test_overview_counts_brokers_and_disks(client, broker):
    text = client.get("/").text
    assert "Cluster id" in text and broker.log_dirs[0] in text
