"""Records in Chromium: searches that continue, and pages for users who prefer less motion."""

import json

import pytest

from pylog.client import Producer
from pylog.console.views import browse
from tests.console.browsers import chromium, page_of, violations

COUNT = 400


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module", autouse=True)
def filled(broker):
    broker.create_topic("shop", partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for i in range(COUNT):
            producer.send("shop", json.dumps({"id": i, "customer": {"id": i % 50}}).encode(),
                          b"order-%d" % i, partition=i % 2)


def rows(page):
    return page.locator("[data-rows] tr").count()


def test_script_continues_a_search_that_needs_more_time(browser, served, monkeypatch):
    monkeypatch.setattr(browse, "PAGE_S", -1.0)
    with page_of(browser, served) as page:
        page.goto("/topics/shop/records?json=$.customer.id+==+7")
        page.get_by_text("The search is complete").wait_for()
        assert rows(page) == COUNT // 50
        assert violations(page) == []
    with page_of(browser, served, java_script_enabled=False) as page:
        page.goto("/topics/shop/records?json=$.customer.id+==+7")
        assert rows(page) == 0 and page.get_by_text("its time is over").count() == 1
        assert page.get_by_role("link", name="Continue the search there").is_visible()
        assert page.get_by_text("partition 0: 0 to").count() == 1


def test_new_records_wait_for_users_who_prefer_less_motion(browser, served):
    with page_of(browser, served, reduced_motion="reduce") as page:
        page.goto("/topics/shop/records?tail=1")
        assert page.get_by_role("button", name="Start").is_visible()
        assert violations(page) == []
