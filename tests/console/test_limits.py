"""Limits of the console for one client: slow connections, whole lists, endless ranges."""

import asyncio
import http.client
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pylog.client import Producer
from pylog.console import serving
from pylog.console.views import group_list
from tests.console.served import WAIT_S, Served

TOPIC, RECORDS = "large", 64


@pytest.fixture(scope="module", autouse=True)
def filled(broker):
    broker.create_topic(TOPIC)
    broker.create_topic("target")
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for _ in range(RECORDS):
            producer.send(TOPIC, b"x" * 900_000)


def until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def opened(served, text):
    """Return a socket that has sent this text and receives little."""
    host, port = served.url.removeprefix("http://").split(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(WAIT_S)
    made.connect((host, int(port)))
    made.sendall(text.format(host=f"{host}:{port}").encode())
    return made


def test_a_download_whose_client_reads_nothing_ends(served, monkeypatch):
    monkeypatch.setattr(serving, "WRITE_S", 0.3)
    with opened(served, f"GET /topics/{TOPIC}/download HTTP/1.1\r\nHost: {{host}}\r\n\r\n"):
        until(lambda: served.console.searches.running == 1)
        until(lambda: served.console.searches.running == 0)


@pytest.mark.parametrize("text", [
    "POST /preferences HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\ntheme",
    "GET /about HTTP/1.1\r\nHost: {host}\r\n"], ids=["body", "headers"])
def test_a_request_that_does_not_arrive_in_time_is_closed(served, monkeypatch, text):
    monkeypatch.setattr(serving, "HEADER_S", 0.3)
    monkeypatch.setattr(serving, "BODY_S", 0.3)
    with opened(served, text) as made:
        try:
            assert b"200 OK" not in made.recv(4096)
        except ConnectionResetError:
            pass


def test_a_second_request_on_a_connection_must_arrive_in_time_too(served, monkeypatch):
    monkeypatch.setattr(serving, "HEADER_S", 0.3)
    with opened(served, "GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n") as made:
        assert b"200 OK" in made.recv(4096)
        made.sendall(b"GET /healthz HTTP/1.1\r\n")
        data = b"more"
        while data:
            try:
                data = made.recv(4096)
            except ConnectionResetError:
                break


def test_a_session_with_a_live_page_is_not_ended_for_new_ones(served):
    client = served.client()
    client.get("/about")
    first = client.cookies["pylog"]
    one = http.client.HTTPConnection(client.host, timeout=WAIT_S)
    one.request("GET", f"/topics/{TOPIC}/records/stream?tail=1",
                headers={"Cookie": f"pylog={first}"})
    assert one.getresponse().readline()
    for _ in range(25):
        served.client().get("/about")
    client.get("/about")
    assert client.cookies["pylog"] == first
    one.close()


def test_few_lists_are_ordered_by_the_values_of_all_rows_at_a_time(served, monkeypatch):
    running, most = [], []
    totals = group_list.group_lag.totals

    async def counted(admin, groups):
        running.append(1)
        most.append(len(running))
        try:
            await asyncio.sleep(0.05)
            return await totals(admin, groups)
        finally:
            running.pop()

    monkeypatch.setattr(group_list.group_lag, "totals", counted)
    clients = [served.client() for _ in range(6)]
    with ThreadPoolExecutor(len(clients)) as pool:
        statuses = list(pool.map(lambda one: one.get("/groups?sort=lag_records").status, clients))
    assert statuses == [200] * 6 and max(most) == 2


@pytest.mark.parametrize("left", ["0:0-9000000000000000000", f"0:{RECORDS - 1}-{RECORDS + 9}"])
def test_offsets_that_do_not_exist_yet_are_not_waited_for(client, left):
    text = client.get(f"/topics/{TOPIC}/download?left={left}").text
    assert len(text.splitlines()) in (1, RECORDS)
    page = client.get(f"/topics/{TOPIC}/records?left={left}&value=y").text
    assert "The search is complete" in page


def test_overlapping_ranges_find_a_record_once(client):
    text = client.get(f"/topics/{TOPIC}/download?left=0:0-2,0:1-3,0:0-3").text
    assert [json.loads(line)["offset"] for line in text.splitlines()] == [0, 1, 2]


def test_a_copy_of_offsets_that_do_not_exist_yet_ends(served, client):
    form = {"step": "start", "target": "target", "left": "0:0-9000000000000000000"}
    response = client.post(f"/topics/{TOPIC}/copy", form)
    path = response.headers["Location"]
    until(lambda: re.search("done:|incomplete:", client.get(path).text))


def test_a_stream_ends_when_its_session_ends(broker):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}}) as served:
        client = served.client()
        client.get("/about")
        one = http.client.HTTPConnection(client.host, timeout=WAIT_S)
        one.request("GET", f"/topics/{TOPIC}/records/stream?tail=1",
                    headers={"Cookie": f"pylog={client.cookies['pylog']}"})
        response = one.getresponse()
        assert response.readline()
        session, = served.console.sessions._sessions.values()
        loop = served.loop
        asyncio.run_coroutine_threadsafe(served.console.sessions.end(session), loop).result(WAIT_S)
        rest = threading.Thread(target=response.read)
        rest.start()
        rest.join(WAIT_S)
        assert not rest.is_alive()
        one.close()
