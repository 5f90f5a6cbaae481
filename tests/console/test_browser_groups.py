"""Groups, ACLs and schemas in Chromium: axe, small screens, and the live lag."""

import json

import pytest

from pylog.client import Admin
from pylog.client.types import TopicPartition
from pylog.testing import Broker
from tests.console.browsers import chromium, page_of, violations
from tests.console.served import Served
from tests.fixtures import registries

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
RULE = ("resource_type=TOPIC&resource_name=orders&pattern_type=LITERAL&principal=User:ann&host=*"
        "&operation=READ&permission=ALLOW")
PAGES = ["/groups", "/groups?type=classic&q=no-such-group", "/topics/orders/groups",
         "/groups/stuck", "/groups/stuck/explain", "/groups/stuck/history",
         "/groups/stuck/offsets", "/groups/stuck/delete", "/acls", "/acls/new",
         f"/acls/delete?{RULE}",
         "/acls/check?principal=User:ann&operation=READ&resource_type=TOPIC&resource_name=orders",
         "/quotas", "/quotas/new", "/users", "/users/new",
         "/users/ann/delete?mechanism=SCRAM-SHA-512",
         "/schemas", "/schemas/orders-value", "/schemas/orders-value/1",
         "/schemas/orders-value/diff?from=1&to=2", "/schemas/check?subject=orders-value"]


@pytest.fixture(scope="module")
def broker():
    with Broker(settings={"authorizer.class.name": STANDARD,
                          "super.users": "User:ANONYMOUS"}) as one:
        one.create_topic("orders", partitions=3).append(*[b"x"] * 9)
        with Admin(bootstrap_servers=one.bootstrap) as admin:
            admin.alter_consumer_group_offsets("stuck", {TopicPartition("orders", 0): 2})
        yield one


@pytest.fixture(scope="module")
def served(broker):
    with registries.played() as registry:
        for number, kind in enumerate(("string", "bytes"), 1):
            registry.schemas[number] = {"schema": json.dumps({"type": kind})}
        registry.subjects["orders-value"] = {1: 1, 2: 2}
        with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                    console_schema_registry_url=registry.url) as one:
            yield one


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


def test_every_page_passes_axe_in_both_themes_and_fits_a_small_screen(browser, served):
    found = {}
    with page_of(browser, served, reduced_motion="reduce") as page:
        for path in PAGES:
            assert page.goto(path).status == 200, path
            found[path] = violations(page)
            page.emulate_media(color_scheme="dark")
            found[path, "dark"] = violations(page, ["color-contrast"])
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 360, "height": 740})
            width = page.evaluate("document.documentElement.scrollWidth")
            found[path, "width"] = [] if width <= 360 else [width]
            page.set_viewport_size({"width": 1280, "height": 900})
    assert {path: rows for path, rows in found.items() if rows} == {}


def test_the_lag_changes_while_the_page_is_open_until_it_is_paused(browser, served, broker):
    with page_of(browser, served) as page:
        page.goto("/groups/stuck")
        lag = page.locator("[data-stream] dd").nth(2)
        before = int(lag.inner_text())
        broker.topic("orders").append(b"more")
        page.wait_for_function("before => document.querySelectorAll('[data-stream] dd')[2]"
                               ".innerText === String(before + 1)", arg=before)
        page.get_by_role("button", name="Pause live lag").click()
        assert page.get_by_role("button", name="Start live lag").is_visible()
