"""The console in Chromium: shortcuts, preferences, and forms with hostile texts."""

import pytest

from tests.console.browsers import chromium, page_of, violations

XSS = ["<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "'-alert(1)-'",
       "{{7*7}}", "</textarea><script>alert(1)</script>", "javascript:alert(1)", "\u202egnp.exe"]


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module", autouse=True)
def seen(broker):
    topic = broker.create_topic("seen", partitions=2)
    topic.append(b"one", (b"key", b"two"))
    return topic


def test_axe_finds_a_planted_violation(browser, served):
    with page_of(browser, served) as page:
        page.goto("/about")
        page.evaluate("document.querySelector('main').appendChild(new Image())")
        assert [rule for rule, _ in violations(page)] == ["image-alt"]


def test_shortcuts_go_to_pages_rows_and_the_search_field(browser, served):
    with page_of(browser, served) as page:
        page.goto("/")
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.wait_for_url("**/topics")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.name") == "q"
        page.keyboard.type("seen")
        page.keyboard.press("Enter")
        page.wait_for_url("**q=seen**")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics/seen")
        page.keyboard.press("?")
        assert page.get_by_role("dialog").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("dialog").is_visible()


def test_shortcuts_can_be_switched_off(browser, served):
    with page_of(browser, served) as page:
        page.goto("/preferences")
        page.get_by_label("Keyboard shortcuts with single keys").uncheck()
        page.get_by_label("dark").check()
        page.get_by_role("button", name="Save").click()
        page.goto("/")
        page.keyboard.press("?")
        assert not page.locator("dialog").is_visible()
        assert page.locator("html").get_attribute("data-theme") == "dark"


def test_hostile_texts_are_shown_and_never_run(browser, served):
    with page_of(browser, served) as page:
        for text in XSS:
            page.goto("/topics")
            page.get_by_label("Find a topic").fill(text)
            page.get_by_role("button", name="Search").click()
            page.goto("/topics/new")
            page.get_by_label("Name").fill(text)
            page.get_by_role("button", name="Create").click()
            assert page.locator("[role=alert]").is_visible()
            page.goto("/topics/seen/produce")
            page.locator("textarea[name=value]").fill(text)
            page.get_by_label("Partition, 0 to").fill("0")
            page.get_by_label("Headers").fill(f"{text}\nh:hex=zz")
            page.get_by_role("button", name="Send").click()
            assert page.locator("textarea[name=value]").input_value() in (
                text, text.replace("\u202e", "\\u202e"))
            page.goto("/audit")
            assert page.locator("main script, main img").count() == 0
