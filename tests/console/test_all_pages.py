"""Every page in Chromium with hostile names: axe in both themes, a small screen, no injection."""

import json

import pytest

from pylog.client import Admin, Consumer, Producer
from pylog.client.admin.types import AclBinding, QuotaAlteration, ScramUpsertion
from pylog.client.types import TopicPartition
from pylog.console.views import all_pages
from pylog.testing import Broker
from tests.console.browsers import chromium, page_of, violations
from tests.console.routes import paths_of
from tests.console.served import WAIT_S, Served
from tests.fixtures import registries

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SCRIPT = "<script>alert(1)</script>"
IMAGE = "\"'><img src=x onerror=alert(1)>"
ORDER = "\u202egnp.exe"
TOPIC = "orders"
NAMES = {"topic": TOPIC, "group": IMAGE, "partition": "0", "offset": "0", "broker": "1", "job": "1",
         "user": IMAGE, "subject": IMAGE, "version": "1", "id": IMAGE}
OK = (200, 400, 404)  # 400: the address that a provider of logins calls.
PARTS = 5  # Each takes a fifth of the pages, so that none is slow on a busy machine.
SMALL, LARGE = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
# Elements that only injected HTML would create.
INJECTED = """() => [...document.querySelectorAll(
    'main script, main img, main iframe, [onerror], [onload], [href^="javascript:"]')]
    .map(element => element.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def broker():
    with Broker(settings={"authorizer.class.name": STANDARD, "broker.rack": IMAGE, "node.id": "1",
                          "super.users": "User:ANONYMOUS"}) as one:
        one.create_topic(TOPIC, partitions=3)
        one.create_topic("copy", partitions=3)
        with Admin(bootstrap_servers=one.bootstrap) as admin, \
                Producer(bootstrap_servers=one.bootstrap) as producer:
            for text in (SCRIPT, IMAGE, ORDER, json.dumps({SCRIPT: IMAGE})):
                producer.send(TOPIC, text.encode(), text.encode(), partition=0,
                              headers=[(text, text.encode())])
            for group in (IMAGE, ORDER):
                admin.alter_consumer_group_offsets(group, {TopicPartition(TOPIC, 0): 1})
            admin.create_acls([AclBinding("GROUP", SCRIPT, "LITERAL", f"User:{IMAGE}", "*", "READ",
                                          "ALLOW")])
            admin.alter_user_scram_credentials([
                ScramUpsertion(IMAGE, "password", "SCRAM-SHA-512", 4096)])
            admin.alter_client_quotas([QuotaAlteration(
                {"client-id": IMAGE}, {"producer_byte_rate": 1e9})])
        with Consumer(bootstrap_servers=one.bootstrap, group_id=SCRIPT, client_id=IMAGE,
                      auto_offset_reset="earliest") as consumer:
            consumer.subscribe([TOPIC])
            assert consumer.poll(WAIT_S)
            yield one


@pytest.fixture(scope="module")
def served(broker):
    with registries.played() as registry:
        for number, kind in enumerate(("string", "bytes"), 1):
            registry.schemas[number] = {"schema": json.dumps({"type": kind, "doc": SCRIPT})}
        registry.subjects[IMAGE] = {1: 1, 2: 2}
        with Served({f"test {SCRIPT}": {"bootstrap.servers": broker.bootstrap}},
                    console_schema_registry_url=registry.url) as one:
            yield one


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def job(browser, served):
    """Start a copy, so that the pages of jobs have one."""
    with page_of(browser, served, reduced_motion="reduce") as page:
        page.goto(f"/topics/{TOPIC}/copy")
        page.get_by_label("Target topic, which must exist").fill("copy")
        page.get_by_role("button", name="Preview").click()
        page.get_by_role("button", name="Copy", exact=True).click()
        page.wait_for_url("**/jobs/1")


@pytest.mark.parametrize("part", range(PARTS))
def test_every_page_is_accessible_in_both_themes_and_on_small_screens(browser, served, job, part):
    found = {}
    paths = [*paths_of(all_pages(), NAMES), "/groups/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
             "/no-such-page"]
    with page_of(browser, served, reduced_motion="reduce") as page:
        for path in paths[part::PARTS]:
            status = page.goto(path).status
            found[path] = [status] if status not in OK and "json=x" not in path else []
            found[path] += [("injected", html) for html in page.evaluate(INJECTED)]
            found[path] += [("light", row) for row in violations(page)]
            page.emulate_media(color_scheme="dark")
            found[path] += [("dark", row) for row in violations(page)]
            page.emulate_media(color_scheme="light")
            page.set_viewport_size(SMALL)
            width = page.evaluate("document.documentElement.scrollWidth")
            found[path] += [("width", width)] if width > SMALL["width"] else []
            page.set_viewport_size(LARGE)
    assert {path: rows for path, rows in found.items() if rows} == {}


@pytest.mark.parametrize(("path", "text"), [
    ("/groups", IMAGE), ("/groups", "\\u202egnp.exe"), ("/brokers", IMAGE), ("/users", IMAGE),
    ("/groups/%3Cscript%3Ealert(1)%3C%2Fscript%3E", IMAGE), ("/acls", SCRIPT), ("/quotas", IMAGE),
    ("/schemas", IMAGE), (f"/topics/{TOPIC}/groups", IMAGE), (f"/topics/{TOPIC}/records", SCRIPT),
    ("/", SCRIPT), ("/topics", IMAGE)])
def test_hostile_names_are_shown_as_text(client, path, text):
    """Otherwise the test above would not have tried them."""
    import html

    assert text in html.unescape(client.get(path).text)


def test_the_lag_changes_while_the_page_is_open_until_it_is_paused(browser, served, broker):
    with page_of(browser, served) as page:
        page.goto("/groups/%E2%80%AEgnp.exe")
        lag = page.locator("[data-stream] dd").nth(2)
        before = int(lag.inner_text())
        broker.topic(TOPIC).append(b"more", partition=0)
        page.wait_for_function("before => document.querySelectorAll('[data-stream] dd')[2]"
                               ".innerText === String(before + 1)", arg=before)
        page.get_by_role("button", name="Pause live lag").click()
        assert page.get_by_role("button", name="Start live lag").is_visible()
