"""Records in Chromium: search, continue, follow, copy and download, with and without a script."""

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
    broker.create_topic("shop-copy", partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for i in range(COUNT):
            producer.send("shop", json.dumps({"id": i, "customer": {"id": i % 50}}).encode(),
                          b"order-%d" % i, partition=i % 2)


def rows(page):
    return page.locator("[data-rows] tr").count()


@pytest.mark.parametrize("with_script", [True, False], ids=["javascript", "no-javascript"])
def test_a_record_is_found_by_a_json_field_and_copied(browser, served, broker, with_script):
    with page_of(browser, served, java_script_enabled=with_script) as page:
        page.goto("/topics/shop")
        page.get_by_role("link", name="Records", exact=True).click()
        page.get_by_label("JSON field", exact=True).fill("$.customer.id == 7")
        page.get_by_role("button", name="Search").click()
        assert rows(page) == COUNT // 50
        assert "The search is complete" in page.get_by_role("status").inner_text()
        with page.expect_download() as downloading:
            page.get_by_role("button", name="Download").click()
        lines = downloading.value.path().read_text().splitlines()
        assert len(lines) == COUNT // 50
        page.get_by_role("link", name="Copy these records to another topic").click()
        page.get_by_label("Target topic, which must exist").fill("shop-copy")
        page.get_by_role("button", name="Preview").click()
        page.get_by_role("button", name="Copy", exact=True).click()
        page.wait_for_url("**/jobs/*")
        for _ in range(100):
            page.goto(page.url)
            if page.get_by_text("records were written").count():
                break
        assert page.get_by_text(f"{COUNT // 50} records were written, 0 failed.").count() == 1


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


def test_new_records_appear_until_the_page_is_paused(browser, served, broker):
    with page_of(browser, served) as page:
        page.goto("/topics/shop/records")
        page.get_by_role("link", name="Follow new records").click()
        page.get_by_text("records arrived").wait_for()
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("shop", b"<b>fresh</b>", b"k")
        page.get_by_text("<b>fresh</b>").wait_for()
        assert violations(page) == []
        page.get_by_role("button", name="Pause").click()
        assert page.get_by_role("button", name="Continue").is_visible()
    with page_of(browser, served, reduced_motion="reduce") as page:
        page.goto("/topics/shop/records?tail=1")
        assert page.get_by_role("button", name="Start").is_visible()
