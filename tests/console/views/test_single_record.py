"""The page of one record."""

import re

import pytest

from pylog.client import Admin, NewTopic, Producer


@pytest.fixture(scope="module")
def topic(broker):
    one = broker.create_topic("single", partitions=2)
    one.append((b"k", b'{"id": 9007199254740993}'), b"<script>alert(1)</script>", (b"gone", None),
               "\u202ereversed".encode())
    return one


@pytest.fixture
def path(topic):
    return f"/topics/{topic}/records/0"


def test_a_record_is_shown_decoded_and_in_hexadecimal(client, path):
    text = client.get(f"{path}/0").text
    assert "9007199254740993" in text and "JSON (guessed)" in text
    assert "7b 22 69 64" in text
    assert f'href="{path}/1"' in text


def test_hostile_values_are_escaped(client, path):
    text = client.get(f"{path}/1").text
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text
    text = client.get(f"{path}/3").text
    assert "\u202e" not in text and "\\u202ereversed" in text


def test_a_tombstone_is_named(client, path):
    assert "none: a tombstone" in client.get(f"{path}/2").text


def test_previous_and_next_lead_to_the_neighbours(client, path):
    assert client.get(f"{path}/2?previous=1").headers["Location"] == f"{path}/1"
    response = client.get(f"{path}/0?previous=1")
    assert response.headers["Location"] == f"{path}/0"
    assert "There is no record before this one." in client.get(f"{path}/0").text


def test_deleted_offsets_lead_to_the_next_record(client, broker):
    topic = broker.create_topic("cut")
    topic.append(b"a", b"b", b"c")
    assert client.post(f"/topics/{topic}/purge", {
        "name": "cut", "partition": "0", "before": "2"}).status == 303
    assert client.get("/topics/cut/records/0/0").headers["Location"] == "/topics/cut/records/0/2"
    assert "The offset 0 has no record." in client.get("/topics/cut/records/0/2").text


def test_missing_records_have_an_error_page(client, path, topic):
    assert client.get(f"{path}/99").status == 404
    assert client.get(f"/topics/{topic}/records/x/1").status == 400
    assert client.get(f"/topics/{topic}/records/7/1").status in (400, 404)


def test_a_value_is_downloaded_as_a_file_of_a_fixed_type(client, path, topic):
    response = client.get(f"{path}/1/value")
    assert response.text == "<script>alert(1)</script>"
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["Content-Disposition"] == (
        f'attachment; filename="{topic}-0-1-value.bin"')
    assert client.get(f"{path}/1/key").status == 404
    assert client.get(f"{path}/1/other").status == 404


def test_reading_a_record_is_audited_without_its_content(client, served, path):
    served.console.audit.lines.clear()
    client.get(f"{path}/1")
    client.get(f"{path}/1/value")
    lines = list(served.console.audit.lines)
    assert [(line["operation"], line["partition"], line["offset"]) for line in lines] == [
        ("records.read", 0, 1), ("records.export", 0, 1)]
    assert "script" not in str(lines)


def test_masked_fields_are_absent_from_pages_files_and_copies(tmp_path, broker):
    from tests.console.served import Served

    path = tmp_path / "masks.toml"
    path.write_text('[[rule]]\ntopics = ["hidden-*"]\npath = "$.pan"\naction = "last4"')
    topic = broker.create_topic("hidden-cards")
    topic.append(b'{"pan": "4111111111112222", "id": 7}', b"no json 4111111111112222")
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                **{"console.masking.file": path}) as served:
        client = served.client()
        texts = [client.get(f"/topics/hidden-cards/{rest}").text for rest in (
            "records/0/0", "records/0/0/value", "records/0/1", "records/0/1/value",
            "produce?partition=0&offset=0")]
        copying = client.get("/topics/hidden-cards/copy")
    assert "…2222" in texts[0] and "(hidden: 24 bytes)" in texts[2]
    for text in texts:
        assert "4111" not in text
    assert "cannot be copied" in texts[4]
    assert copying.status == 403 and "cannot be copied" in copying.text


def test_a_record_shows_its_batch_and_the_state_of_its_transaction(broker, client):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic("batched", 2)])
    settings = {"bootstrap_servers": broker.bootstrap, "compression_type": "gzip"}
    with Producer(**settings, transactional_id="batched") as producer:
        producer.init_transactions()
        for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
            producer.begin_transaction()
            producer.send("batched", b"x%d" % number, partition=0)
            producer.flush()
            end()
        producer.begin_transaction()
        producer.send("batched", b"open", partition=0)
        producer.send("batched", b"nothing is decided here", partition=1)
        producer.flush()
        pages = {offset: client.get(f"/topics/batched/records/0/{offset}").text
                 for offset in (0, 2, 4)}
        assert "open transaction</summary>" in client.get("/topics/batched/records/1/0").text
        producer.abort_transaction()
    for offset, state in ((0, "committed"), (2, "aborted"), (4, "open")):
        assert f"{state} transaction</summary>" in pages[offset], offset
        assert re.search(r"compression: gzip.*epoch \d+, sequence \d", pages[offset], re.DOTALL)
