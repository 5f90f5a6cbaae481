"""Odd values in paths, queries and forms: every page rejects them with a reason, none fails."""

import re
from urllib.parse import quote

import pytest

from pylog.console.views import all_pages
from tests.console.routes import OTHERS

ODD = ["9" * 30, "\x00", "-1", "0x1", "\ud800", "a" * 300, "%", "../..", "\u202e", "1e400", "[]",
       "NaN", " ", "\uff10"]
SHORT = 2
EACH = pytest.mark.parametrize("text", [
    pytest.param(text, id=str(number), marks=[pytest.mark.slow] * (number >= SHORT))
    for number, text in enumerate(ODD)])
NAMES = {"topic": "seen", "group": "seen", "partition": "0", "offset": "0", "part": "value",
         "broker": "1", "job": "1", "user": "seen", "subject": "seen", "version": "1",
         "id": "seen"}
QUERY = ("q", "sort", "page", "size", "partition", "offset", "offset_from", "offset_until", "since",
         "until", "limit", "left", "json", "key_json", "key_regex", "value_regex", "header",
         "order", "size_min", "producer_id", "key_as", "value_as", "edit", "mechanism", "from",
         "to", "subject", "state", "type", "format", "principal", "operation", "resource_type",
         "resource_name", "pattern_type", "permission", "host", "cluster", "next")
ROUTES = [page.path for page in all_pages() if "GET" in page.methods
          and page.path not in (*OTHERS, "/topics/{topic}/records/stream")]


@pytest.fixture(scope="module", autouse=True)
def seen(broker):
    broker.create_topic("seen").append(b"one")


def quoted(text):
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


@EACH
def test_no_odd_path_makes_a_page_fail(client, text):
    failed = []
    for route in ROUTES:
        for name in [one for one in NAMES if f"{{{one}}}" in route]:
            path = route.format(**{**NAMES, name: quoted(text)})
            if client.get(path).status == 500:
                failed.append(path)
    assert failed == []


@EACH
def test_no_odd_query_makes_a_page_fail(client, text):
    query = "&".join(f"{name}={quoted(text)}" for name in QUERY)
    paths = [f"{route.format(**NAMES)}?{query}" for route in ROUTES]
    paths += [f"/topics/seen/records?{name}={quoted(text)}" for name in QUERY]
    assert [path for path in paths if client.get(path).status == 500] == []


@EACH
def test_no_odd_form_makes_a_page_fail(client, text):
    token = re.search(r'name="csrf" value="([^"]+)"', client.get("/preferences").text).group(1)
    fields = ("name", "partitions", "replicas", "settings", "key", "value", "key_format",
              "value_format", "headers", "partition", "timestamp", "count", "compression", "target",
              "rate", "step", "plan", "way", "topic", "other_topic", "changes", "expected", "lines",
              "user", "mechanism", "iterations", "password", "quota", "ip", "client-id", "subject",
              "schema", "type", "before", "left", *QUERY)
    failed = []
    for page in all_pages():
        if "POST" in page.methods and page.path != "/logout":
            form = dict.fromkeys(fields, text.encode("utf-8", "replace").decode())
            for more in ({}, {"step": "apply"}, {"step": "preview", "way": "time"},
                         {"step": "start", "target": "seen"}):
                response = client.send("POST", page.path.format(**NAMES),
                                       {**form, **more, "csrf": token})
                if response.status == 500:
                    failed.append((page.path, more))
    assert failed == []
