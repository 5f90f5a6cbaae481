"""Records whose values are decoded: by schema registry, in chosen formats, internal topics."""

import html
import io
import json
import re
import struct
import urllib.parse
import uuid

import fastavro
import pytest

from pylog.client import Admin, Consumer, NewTopic, Producer
from tests.console.served import Served
from tests.console.views.test_browse import cells, events_of
from tests.fixtures import registries

TOPIC, COUNT = "orders", 600
AVRO = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "pin", "type": "string"}]}
PROTO = 'syntax = "proto3"; message Unused { } message Order { int64 id = 1; string pin = 2; }'
GUID = uuid.UUID(int=7)


@pytest.fixture(scope="module")
def registry():
    with registries.played() as one:
        one.schemas[1] = {"schema": json.dumps(AVRO)}
        one.schemas[2] = {"schema": PROTO, "schemaType": "PROTOBUF"}
        one.schemas[3] = {"schema": "{}", "schemaType": "JSON"}
        one.schemas[4] = {"schema": '{"type": "nonsense"}'}
        one.guids[str(GUID)] = one.schemas[1]
        yield one


def avro(number, head=b"\0\0\0\0\1"):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO, {"id": number, "pin": f"pin-{number}"})
    return head + out.getvalue()


def proto(number):
    pin = f"pin-{number}".encode()
    return b"\0\0\0\0\2\2\2" + b"\x08" + bytes([number & 0x7F]) + b"\x12" + bytes([len(pin)]) + pin


@pytest.fixture(scope="module")
def served(broker, registry):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, 1), NewTopic("numbers", 1)])
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(TOPIC, avro(number), b"avro-%d" % number)
        producer.send(TOPIC, proto(77), b"proto")
        producer.send(TOPIC, b'\0\0\0\0\3{"id": 88, "pin": "pin-88"}', b"json schema")
        producer.send(TOPIC, b'{"id": 99, "pin": "pin-99"}', b"json")
        producer.send(TOPIC, avro(111, b""), b"guid", headers=[
            ("__value_schema_id", b"\1" + GUID.bytes)])
        producer.send(TOPIC, b"\0\0\0\0\4x", b"broken schema")
        producer.send(TOPIC, b"\0\0\0\0\1\xff", b"cut")
        producer.send(TOPIC, b"\0\0\0\x09\x09abc", b"no such schema")
        producer.send("numbers", struct.pack(">q", 2**63 - 1), struct.pack(">i", 7))
        producer.send("numbers", b"\x82\xa2id\x07\xa3pin\xa3abc", b"msgpack")
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                console_schema_registry_url=registry.url) as one:
        yield one


def path(part="", topic=TOPIC, **query):
    return f"/topics/{topic}/records{part}?" + urllib.parse.urlencode(query, doseq=True)


def found(client, **query):
    """Return {key: value} of a page of records."""
    return {row[3]: row[4] for row in cells(client.get(path(**query)))}


def test_values_are_decoded_by_the_schemas_that_they_name(client):
    rows = found(client)
    assert rows["avro-599"] == '{"id": 599, "pin": "pin-599"} Avro, schema 1'
    assert rows["proto"] == '{"id": 77, "pin": "pin-77"} Protobuf, schema 2'
    assert rows["json schema"] == '{"id": 88, "pin": "pin-88"} JSON Schema, schema 3'
    assert rows["json"] == '{"id": 99, "pin": "pin-99"}'
    assert rows["guid"].startswith('{"id": 111') and str(GUID) in rows["guid"]
    assert rows["no such schema"] == "0x0000000909616263"


def test_a_broken_schema_or_value_shows_its_error_beside_the_bytes(client):
    rows = found(client)
    assert re.fullmatch(r"0x0000000004.* Avro, schema 4: .*nonsense.*", rows["broken schema"])
    assert rows["cut"].startswith("0x0000000001ff Avro, schema 1: ")


@pytest.mark.parametrize("query", [
    {"json": "$.id == 123"}, {"value": "pin-123"}, {"value_regex": "pin-12[3]"},
    {"json": "$.id == 123", "order": "oldest"}, {"json": ["$.id > 122", "$.id < 124"]}])
def test_a_search_compares_decoded_values(client, query):
    page = client.get(path(**query))
    assert [row[3] for row in cells(page)] == ["avro-123"]
    assert "The search is complete" in page.text and "were decoded to be compared" in page.text
    assert "could not be decoded" in page.text


@pytest.mark.parametrize(("number", "key"), [(77, "proto"), (88, "json schema"), (99, "json"),
                                             (111, "guid")])
def test_one_search_finds_values_of_all_kinds(client, number, key):
    assert key in found(client, json=f"$.id == {number}")


def test_a_search_without_conditions_on_the_value_decodes_nothing_to_compare(client):
    page = client.get(path(key="avro-5"))
    assert len(cells(page)) == 1 and "to be compared" not in page.text


def test_events_and_downloads_contain_decoded_values(client):
    events = events_of(client, path("/stream", json="$.id == 5"))
    [row] = [row for name, data in events if name == "match" for row in data["rows"]]
    assert row["value"] == '{"id": 5, "pin": "pin-5"}' and row["value_note"] == "Avro, schema 1"
    lines = client.get(f"/topics/{TOPIC}/download?key=avro-5").text.splitlines()
    assert json.loads(json.loads(lines[0])["value"]) == {"id": 5, "pin": "pin-5"}
    text = client.get(f"/topics/{TOPIC}/download?key=avro-5&format=csv").text
    assert '""pin"": ""pin-5""' in text


def test_one_record_shows_its_decoded_value_and_its_bytes(client):
    page = client.get(f"/topics/{TOPIC}/records/0/5").text
    assert "Avro, schema 1" in page and "&#34;pin&#34;: &#34;pin-5&#34;" in page
    assert "00000000  00 00 00 00 01" in page


def test_a_preview_of_a_copy_shows_decoded_values(client):
    page = client.post(f"/topics/{TOPIC}/copy", {"step": "preview", "target": "numbers",
                                                 "json": "$.id == 7"})
    assert "&#34;pin-7&#34;" in page.text and "avro-8" not in page.text


@pytest.mark.parametrize(("query", "key", "value"), [
    ({"value_as": "int64", "key_as": "int32"}, "7", str(2**63 - 1)),
    ({"value_as": "hex", "key_as": "hex"}, "0x00000007", "0x7fffffffffffffff"),
    ({"value_as": "base64"}, "0x00000007", "f/////////8=")])
def test_a_format_of_the_address_is_used(client, query, key, value):
    assert found(client, topic="numbers", **query)[key] == value


def test_message_pack_is_decoded_and_searched_when_chosen(client):
    rows = found(client, topic="numbers", value_as="msgpack", json="$.id == 7")
    assert rows == {"msgpack": '{"id": 7, "pin": "abc"} MessagePack'}


def test_bytes_that_do_not_fit_a_chosen_format_say_why(client):
    row = found(client, topic="numbers", value_as="json")["msgpack"]
    assert row.startswith("0x82a26964") and "it is not JSON" in row
    assert client.get(path(value_as="nonsense")).status == 400


def test_a_schema_can_be_chosen_for_bytes_that_name_none(client, broker):
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send("numbers", avro(5, b""), b"bare")
    rows = found(client, topic="numbers", value_as="schema", value_schema=1, json="$.id == 5")
    assert rows == {"bare": '{"id": 5, "pin": "pin-5"} Avro, schema 1'}
    assert "it names no schema" in found(client, topic="numbers", value_as="schema")["bare"]


def test_links_keep_the_chosen_formats(client):
    page = client.get(path(topic="numbers", value_as="int64", key_as="int32")).text
    links = [html.unescape(link) for link in re.findall(r'<a href="([^"]*records/0/[^"]*)"', page)]
    assert links and all("value_as=int64" in link and "key_as=int32" in link for link in links)
    assert "9223372036854775807" in client.get(links[-1]).text


def test_an_unreachable_registry_costs_one_request_and_no_page(broker, registry):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                console_schema_registry_url="http://127.0.0.1:9") as served:
        rows = found(served.client())
        assert rows["avro-599"].startswith("0x0000000001") and "127.0.0.1:9" in rows["avro-599"]


def test_masks_apply_to_decoded_values(broker, registry, tmp_path):
    path_ = tmp_path / "masks.toml"
    path_.write_text('[[rule]]\ntopics = "*"\npath = "$.pin"\n')
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                **{"console.schema.registry.url": registry.url,
                   "console.masking.file": path_}) as served:
        client = served.client()
        pages = [client.get(path()).text, client.get(f"/topics/{TOPIC}/records/0/5").text,
                 client.get(f"/topics/{TOPIC}/download?limit=50").text,
                 client.get(path(key="avro-5", value_as="hex")).text]
        for page in pages:
            assert "pin-" not in page and "70696e2d" not in page
        assert "(hidden)" in pages[0] and "599" in pages[0]
        assert client.get(path(json="$.id == 5")).status == 403


def test_records_of_internal_topics_are_decoded(client, broker):
    with Consumer(bootstrap_servers=broker.bootstrap, group_id="readers",
                  auto_offset_reset="earliest") as consumer:
        consumer.subscribe([TOPIC])
        consumer.poll(10)
        consumer.commit()
    rows = cells(client.get(path(topic="__consumer_offsets", key_json='$.group == "readers"',
                                 limit=100)))
    assert {"OffsetCommitKey", "ConsumerGroupMetadataKey"} & {
        row[3].rpartition("} ")[2] for row in rows}
    commits = [row[4] for row in rows if row[3].endswith("OffsetCommitKey") and "{" in row[4]]
    assert any(f'"offset": {COUNT}' in text or '"offset": ' in text for text in commits)
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id="tx-1") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("numbers", b"1")
        producer.commit_transaction()
    rows = cells(client.get(path(topic="__transaction_state", limit=100)))
    assert any("tx-1" in row[3] and "TransactionLogValue" in row[4] for row in rows)
