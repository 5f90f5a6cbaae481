"""The console in Chromium: flows with and without JavaScript, keyboard, small screens, axe."""

import pytest

from tests.console.browsers import chromium, page_of, violations

PAGES = ["/", "/brokers", "/brokers/1", "/brokers/1/settings?q=log.ret", "/topics", "/topics/new",
         "/topics/seen", "/topics/seen/settings", "/topics/seen/settings?edit=retention.ms",
         "/topics/seen/settings?edit=", "/topics/seen/produce", "/topics/seen/purge",
         "/topics/seen/delete", "/topics/seen/records", "/topics/seen/records/0/1",
         "/topics/seen/records?value=nothing&json=$.a==1&json=$.b", "/topics/seen/records?json=x",
         "/topics/seen/copy", "/jobs", "/audit", "/about", "/preferences", "/no-such-page"]
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


def test_every_page_passes_axe_in_both_themes(browser, served):
    found = {}
    with page_of(browser, served) as page:
        for path in PAGES:
            page.goto(path)
            found[path] = violations(page)
            page.emulate_media(color_scheme="dark")
            found[path, "dark"] = violations(page, ["color-contrast"])
            page.emulate_media(color_scheme="light")
    assert {path: rows for path, rows in found.items() if rows} == {}


def test_axe_finds_a_planted_violation(browser, served):
    with page_of(browser, served) as page:
        page.goto("/about")
        page.evaluate("document.querySelector('main').appendChild(new Image())")
        assert [rule for rule, _ in violations(page)] == ["image-alt"]


def test_no_page_is_wider_than_a_small_screen(browser, served):
    with page_of(browser, served, viewport={"width": 360, "height": 740}) as page:
        wide = []
        for path in PAGES:
            page.goto(path)
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > 360:
                wide.append((path, width))
    assert wide == []


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
