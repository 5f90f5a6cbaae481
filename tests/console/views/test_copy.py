"""Copies of topics: preview, whole batches and filtered records, rate, stop, reports."""

import asyncio
import html
import json
import re
import time

import pytest

from pylog._native.records import batch
from pylog.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from pylog.client.admin.types import ConfigResource, ResourceType
from pylog.client.aio import Admin as AioAdmin
from pylog.client.consumer.range_reader import RangeReader, current_ranges

COUNT = 500


@pytest.fixture(scope="module")
def admin(broker):
    with Admin(bootstrap_servers=broker.bootstrap) as one:
        yield one


@pytest.fixture(scope="module")
def source(broker, admin):
    admin.create_topics([NewTopic("source", 2)])
    with Producer(bootstrap_servers=broker.bootstrap, compression_type="lz4") as producer:
        for i in range(COUNT):
            producer.send("source", json.dumps({"id": i}).encode(), b"key-%d" % i, partition=i % 2,
                          timestamp=int(time.time() * 1000) - i, headers=[("n", b"%d" % i)])
    return "source"


@pytest.fixture
def target(admin, request):
    name = re.sub(r"\W", "-", request.node.name)
    admin.create_topics([NewTopic(name, 2)])
    return name


def read(broker, topic):
    """Return (partition, key, value, timestamp, headers) of all records by partition and order."""
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        parts = [TopicPartition(topic, number) for number in range(2)]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends, found = consumer.end_offsets(parts), []
        while any(consumer.position(tp) < ends[tp] for tp in parts):
            found += [(row.partition, row.key, row.value, row.timestamp, row.headers)
                      for row in consumer.poll(1)]
        return sorted(found, key=lambda row: row[0])


def stored_batches(bootstrap, topic):
    """Return the headers of a topic's batches."""
    async def go():
        async with AioAdmin(bootstrap_servers=bootstrap) as one:
            ranges = await current_ranges(one.cluster, topic, [0, 1])
            return [header async for chunk in RangeReader(one.cluster, topic, ranges).chunks()
                    for _, header in batch.walk(chunk.records)]
    return asyncio.run(go())


def ended(client, location):
    """Wait for a job's end; return its page."""
    end_s = time.monotonic() + 60
    while True:
        page = client.get(location).text
        if "Stop this job" not in page:
            return page
        assert time.monotonic() < end_s
        time.sleep(0.05)


def start(client, form, query=""):
    """Post the form and the preview's form. Returns the preview's text and the job's path."""
    shown = client.post(f"/topics/source/copy{query}", {"step": "preview", **form})
    assert shown.status == 200, shown.text
    fields = {html.unescape(name): html.unescape(value) for name, value in re.findall(
        r'<input type="hidden" name="([^"]+)" value="([^"]*)"', shown.text)}
    done = client.post("/topics/source/copy", fields)
    assert done.status == 303, done.text
    return shown.text, done.headers["Location"]


def test_whole_batches_are_copied_as_they_are(client, broker, source, target):
    shown, location = start(client, {"target": target})
    assert "pass unchanged" in shown and f"{COUNT} offsets" in shown
    page = ended(client, location)
    assert f"{COUNT} records were written, 0 failed." in page and "batches passed" in page
    assert read(broker, target) == read(broker, source)


def test_only_matching_records_are_copied(client, broker, source, target):
    shown, location = start(client, {"target": target, "json": "$.id < 100", "partitions": "key"})
    assert "are built again" in shown and "key-0" in shown
    assert "100 records were written, 0 failed." in ended(client, location)
    found = read(broker, target)
    assert sorted(json.loads(row[2])["id"] for row in found) == list(range(100))
    wanted = {row[1]: row for row in read(broker, source)}
    assert all(row[2:] == wanted[row[1]][2:] for row in found)


def test_part_of_a_batch_is_copied_without_its_other_records(client, broker, source, target):
    _, location = start(client, {"target": target, "offset_from": "10", "offset_until": "20"})
    assert "20 records were written, 0 failed." in ended(client, location)
    assert {row[2] for row in read(broker, target)} == {
        json.dumps({"id": i}).encode() for i in range(20, 40)}


def test_aborted_records_are_not_copied(client, broker, admin, target):
    admin.create_topics([NewTopic("transactions", 2)])
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id="t-1") as producer:
        with producer.transaction():
            producer.send("transactions", b"kept", partition=0)
        with pytest.raises(RuntimeError), producer.transaction():
            producer.send_and_wait("transactions", b"dropped", partition=0)
            raise RuntimeError
        with producer.transaction():
            producer.send("transactions", b"kept too", partition=1)
    shown = client.post("/topics/transactions/copy", {"step": "preview", "target": target})
    left = re.search(r'name="left" value="([^"]*)"', shown.text)[1]
    done = client.post("/topics/transactions/copy",
                       {"step": "start", "target": target, "left": left})
    assert "2 records were written, 0 failed." in ended(client, done.headers["Location"])
    assert [row[2] for row in read(broker, target)] == [b"kept", b"kept too"]


def test_rate_is_kept_and_a_job_can_be_stopped(client, broker, source, target):
    _, location = start(client, {"target": target, "rate": "1", "json": "$.id >= 0"})
    assert "Stop this job" in client.get(location).text
    page = client.get(location).text
    token = re.search(r'name="csrf" value="([^"]+)"', page)[1]
    assert client.send("POST", f"{location}/stop", {"csrf": token}).status == 303
    assert "stopped" in ended(client, location)


@pytest.mark.parametrize("form, status, text", [
    ({"target": ""}, 400, "The target topic is empty"),
    ({"target": "missing"}, 404, "does not exist"),
    ({"target": "narrow"}, 400, "too few partitions"),
    ({"target": "narrow", "json": "x"}, 400, "The filter is not valid"),
    ({"target": "narrow", "rate": "fast"}, 400, "The rate is not valid"),
    ({"target": "narrow", "cluster": "elsewhere"}, 400, "not logged in to the target"),
])
def test_copy_that_cannot_work_is_rejected(client, admin, source, form, status, text):
    if "narrow" not in admin.list_topics():
        admin.create_topics([NewTopic("narrow", 1)])
    page = client.post("/topics/source/copy", {"step": "preview", **form})
    assert (page.status, text in page.text) == (status, True)


def test_copied_batches_have_no_gaps_and_an_idempotent_producer(client, broker, source, target):
    _, location = start(client, {"target": target})
    ended(client, location)
    headers = stored_batches(broker.bootstrap, target)
    assert sum(header.record_count for header in headers) == COUNT
    assert all(header.producer_id >= 0 and header.attributes & batch.CODEC_MASK == 3
               for header in headers)


@pytest.mark.parametrize("filter_", [{}, {"json": "$.id < 100"}])
def test_a_copy_whose_records_are_rejected_is_incomplete(client, admin, source, target, filter_):
    admin.incremental_alter_configs({
        ConfigResource(ResourceType.TOPIC, target): {"max.message.bytes": "70"}})
    _, location = start(client, {"target": target, **filter_})
    page = ended(client, location)
    failed = 100 if filter_ else COUNT
    assert "incomplete: " in page and f"0 records were written, {failed} failed." in page


def test_jobs_are_listed_only_for_their_user(client, served, source, target):
    _, location = start(client, {"target": target})
    ended(client, location)
    assert location in client.get("/jobs").text
    jobs = served.console.jobs
    assert jobs.visible({"test": "anonymous"})
    # A user of another cluster may have the same name.
    assert jobs.visible({"test": "ann"}) == jobs.visible({"other": "anonymous"}) == []
    assert client.get("/jobs/999").status == 404


def test_copies_are_audited_and_previews_are_not(client, served, source, target):
    before = [line["operation"] for line in served.console.audit.lines].count("records.copy")
    start(client, {"target": target})
    lines = [line for line in served.console.audit.lines if line["operation"] == "records.copy"]
    assert len(lines) == before + 1 and lines[-1]["target"] == target
