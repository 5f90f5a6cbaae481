"""The pages of a topic's records: browsing, searching, live events, downloads."""

import asyncio
import contextlib
import csv
import html
import http.client
import io
import json
import re
import time
import urllib.parse
from types import SimpleNamespace

import pytest

from pylog.client import NewTopic, Producer, TopicPartition
from pylog.console import events
from pylog.console.pages import PageError

COUNT, TOPIC = 3000, "letters"
HOSTILE = "<script>alert(1)</script>\u202e"


@pytest.fixture(scope="module")
def admin(served, broker):
    from pylog.client import Admin

    with Admin(bootstrap_servers=broker.bootstrap) as one:
        yield one


@pytest.fixture(scope="module")
def filled(broker, admin):
    admin.create_topics([NewTopic(TOPIC, 2)])
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for i in range(COUNT):
            producer.send(TOPIC, json.dumps({"id": i, "big": 2**63 - 1 + i}).encode(),
                          b"key-%d" % i, partition=i % 2, headers=[("trace", b"%d" % i)])
        producer.send(TOPIC, HOSTILE.encode(), HOSTILE.encode(), partition=0,
                      headers=[(HOSTILE, HOSTILE.encode())])
        producer.send(TOPIC, None, b"=1+1", partition=1)
    return TOPIC


def path(part="", **query):
    text = urllib.parse.urlencode(query, doseq=True)
    return f"/topics/{TOPIC}/records{part}" + (f"?{text}" if text else "")


def cells(page):
    """Return the texts of the cells of each result row."""
    body = page.text.partition("<tbody data-rows>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in
             re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)] for row in rows]


def events_of(client, target, until="done", most=200):
    """Return (name, data) of the events of a stream until one with this name."""
    found, name = [], ""
    with opened(client, target) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        while len(found) < most and (line := response.readline()):
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                found.append((name, json.loads(line[6:])))
                if name == until:
                    break
    return found


@contextlib.contextmanager
def opened(client, target):
    """Open a stream and close its connection at the end."""
    connection = http.client.HTTPConnection(client.host, timeout=60)
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    connection.request("GET", target, headers={"Cookie": cookie})
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def test_newest_records_are_shown_without_a_filter(client, filled):
    page = client.get(path())
    rows = cells(page)
    assert page.status == 200 and len(rows) == 50
    assert {row[3] for row in rows} >= {"key-2999", "key-2998", "=1+1"}
    assert "The search is not complete" in page.text and "Continue the search there" in page.text


def test_record_is_found_by_a_json_field(client, filled):
    page = client.get(path(json="$.id == 1234"))
    assert [row[3] for row in cells(page)] == ["key-1234"]
    assert "The search is complete" in page.text
    assert str(2**63 - 1 + 1234) in page.text


def test_nothing_found_is_said_only_after_a_complete_search(client, filled):
    page = client.get(path(value="nowhere"))
    assert "No record matches. The search is complete" in page.text and cells(page) == []
    page = client.get(path(value="nowhere", left=f"0:0-{COUNT // 4}"))
    assert "No record matches" in page.text


def test_continue_link_leads_to_the_remaining_records(client, filled):
    seen, target = [], path(json="$.id < 120", limit="50")
    while target:
        page = client.get(target)
        seen += [row[3] for row in cells(page)]
        more = re.search(r'<a data-more href="([^"]+)"', page.text)
        target = html.unescape(more[1]) if more else ""
    assert sorted(seen) == sorted(f"key-{i}" for i in range(120))


def test_whole_key_searches_one_partition_and_offers_the_others(client, filled):
    page = client.get(path(key="key-3"))
    assert "Only partition" in page.text
    other = html.unescape(re.search(r'<a href="([^"]+)">Search the other partitions', page.text)[1])
    assert [row[3] for row in cells(client.get(other))] == ["key-3"]


def test_hostile_bytes_are_escaped(client, filled):
    page = client.get(path(value="alert"))
    assert len(cells(page)) == 1
    assert "<script>alert" not in page.text and "\u202e" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page.text
    [match] = [data for name, data in events_of(client, path("/stream", value="alert"))
               if name == "match"]
    assert "\u202e" not in match["rows"][0]["value"]


@pytest.mark.parametrize("query, field", [
    ({"json": "x == 1"}, "json"), ({"partition": "x"}, "partition"),
    ({"value_regex": "("}, "value_regex"), ({"since": "soon"}, "since")])
def test_wrong_filter_names_its_field_and_keeps_the_form(client, filled, query, field):
    page = client.get(path(**query))
    assert page.status == 400 and f"<code>{field}</code>" in page.text
    assert html.escape(next(iter(query.values()))) in page.text


def test_unknown_topic_and_partition_are_not_found(client, filled):
    assert client.get("/topics/nothing/records").status == 404
    assert client.get(path(partition="9")).status == 404


def test_stream_sends_matches_and_the_outcome(client, filled):
    found = events_of(client, path("/stream", json="$.id >= 2990", order="oldest"))
    rows = [row for name, data in found if name == "match" for row in data["rows"]]
    assert sorted(row["key"] for row in rows) == sorted(f"key-{i}" for i in range(2990, 3000))
    name, done = found[-1]
    assert name == "done" and done["complete"] and done["more"] == ""
    assert all(isinstance(value, str) for row in rows for value in row.values())


def test_stream_reports_an_error_as_an_event(client, filled):
    [(name, data)] = events_of(client, path("/stream", partition="9"), until="error")
    assert name == "error" and data["failed"] == "The topic has no such partition"


def test_tail_shows_new_records(client, admin, broker):
    admin.create_topics([NewTopic("followed", 2)])
    client.get("/topics/followed/records")
    with opened(client, "/topics/followed/records/stream?tail=1") as response:
        assert response.readline() == b"event: progress\n"
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for i in range(200):
                producer.send("followed", b"fresh %d" % i, partition=0)
        shown, text = [], ""
        while "200 records arrived" not in text:
            line = response.readline()
            assert line
            if line.startswith(b"data: "):
                data = json.loads(line[6:])
                shown += data.get("rows", [])
                text = data.get("text", text)
    assert 0 < len(shown) < 200 and "left out" in text
    assert shown[0]["value"].startswith("fresh")


def test_closed_stream_ends_its_search(client, served, filled):
    client.get(path())
    [session] = [one for one in served.console.sessions._sessions.values()
                 if one.id == client.cookies["pylog"]]
    with opened(client, path("/stream", tail="1")) as response:
        response.readline()
        assert session.streams == 1
    end_s = time.monotonic() + 60
    while session.streams:
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_number_of_streams_is_limited(client, served, filled, monkeypatch):
    monkeypatch.setattr(events, "LIVE_PAGES_MAX", 0)
    assert client.get(path("/stream", tail="1")).status == 429


def test_streams_of_a_user_are_counted_in_all_sessions(served, filled, monkeypatch):
    monkeypatch.setattr(events, "LIVE_PAGES_MAX", 1)
    monkeypatch.setattr(served.console, "auth", "sasl")
    sessions = [asyncio.run(served.console.sessions.create("ann", "here")) for _ in range(2)]

    async def left(session):
        state = SimpleNamespace(session=session)
        request = SimpleNamespace(state=state, app=SimpleNamespace(
            state=SimpleNamespace(console=served.console)))

        async def source():
            yield b"x"
        return events.stream(request, source())

    async def go():
        first = await left(sessions[0])
        parts = first.body_iterator
        await anext(parts)
        with pytest.raises(PageError):
            await left(sessions[1])
        await parts.aclose()
        await left(sessions[1])
    asyncio.run(go())
    assert served.console.streams["ann"] == 0
    for session in sessions:
        asyncio.run(served.console.sessions.end(session))


def test_searches_above_the_limit_are_rejected_but_browsing_is_not(client, served, filled):
    slots = [served.console.searches.slot() for _ in range(4)]
    for slot in slots:
        slot.__enter__()
    try:
        page = client.get(path(value="x"))
        assert page.status == 429 and "console.search.concurrent.max" in page.text
        assert client.get(path()).status == 200
    finally:
        for slot in slots:
            slot.__exit__(None, None, None)


def test_download_as_json_lines_has_every_match_in_order(client, filled):
    page = client.get(f"/topics/{TOPIC}/download?format=jsonl&json=" + urllib.parse.quote(
        "$.id < 1000"))
    lines = [json.loads(line) for line in page.text.splitlines()]
    assert page.headers["Content-Disposition"] == f'attachment; filename="{TOPIC}.jsonl"'
    assert sorted(json.loads(line["value"])["id"] for line in lines) == list(range(1000))
    offsets = [line["offset"] for line in lines if line["partition"] == 1]
    assert offsets == sorted(offsets) and lines[0]["headers"][0]["key"] == "trace"


def test_download_as_csv_escapes_formulas(client, filled):
    page = client.get(f"/topics/{TOPIC}/download?format=csv&key_contains=1")
    rows = list(csv.reader(io.StringIO(page.text)))
    assert rows[0] == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert any(row[3] == "'=1+1" and row[4] == "" for row in rows[1:])
    assert all(len(row) == 6 for row in rows)


def test_reads_and_downloads_are_audited(client, served, filled):
    client.get(path(value="needle"))
    client.get(f"/topics/{TOPIC}/download?value=needle")
    read, export = [line for line in served.console.audit.lines
                    if line["outcome"] == "done" and "value=needle" in line.get("query", "")][-2:]
    assert (read["operation"], read["topic"], read["count"]) == ("records.read", TOPIC, 0)
    assert export["operation"] == "records.export"


@pytest.mark.parametrize(("target", "count"), [
    ("/stream", 10), ("/download", 10), ("/download-csv", 10)])
def test_the_end_of_a_stream_is_audited_with_its_count(client, served, filled, target, count):
    served.console.audit.lines.clear()
    query = urllib.parse.urlencode({"json": "$.id < 10", "key_contains": "key-"})
    if target == "/stream":
        events_of(client, path("/stream", json="$.id < 10"))
    else:
        client.get(f"/topics/{TOPIC}/download?{query}" + "&format=csv" * target.endswith("csv"))
    end_s = time.monotonic() + 60
    while not (ends := [line for line in served.console.audit.lines
                        if line["outcome"] == "ended"]):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert [line["count"] for line in ends] == [count]


def test_deleted_records_are_named(client, admin, broker, filled):
    admin.create_topics([NewTopic("gone", 1)])
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for _ in range(5):
            producer.send("gone", b"x")
    admin.delete_records({TopicPartition("gone", 0): 3})
    page = client.get("/topics/gone/records?order=oldest&left=0:0-5")
    assert "Deleted before they were read: partition 0: 0 to 2" in page.text


def test_masked_fields_are_absent_from_searches_events_and_downloads(tmp_path, broker):
    from tests.console.served import Served

    path = tmp_path / "masks.toml"
    path.write_text('[[rule]]\ntopics = ["secret-*"]\npath = "$.pan"\naction = "last4"')
    broker.create_topic("secret-cards").append((b"k", b'{"pan": "4111111111112222", "id": 7}'))
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                **{"console.masking.file": path}) as served:
        client = served.client()
        topic = "/topics/secret-cards"
        for place in ("records", "records/stream?offset_from=0", "download", "download?format=csv",
                      "records?key=k"):
            text = client.get(f"{topic}/{place}").text
            assert "2222" in text and "4111" not in text, place
        for query in ("value=4111", "json=$.pan+==+%224111111111112222%22", "value_regex=4.*"):
            for place in ("records", "records/stream", "download"):
                assert client.get(f"{topic}/{place}?{query}").status == 403, (place, query)
