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


@pytest.mark.parametrize("with_script", [True, False], ids=["javascript", "no-javascript"])
def test_a_topic_can_be_created_filled_changed_and_deleted(browser, served, broker, with_script):
    name = f"flow-{with_script}"
    with page_of(browser, served, java_script_enabled=with_script) as page:
        page.goto("/")
        page.get_by_role("link", name="Topics", exact=True).click()
        page.get_by_role("link", name="Create a topic").click()
        page.get_by_label("Name").fill(name)
        page.get_by_label("Partitions").fill("2")
        page.get_by_role("button", name="Create").click()
        assert page.get_by_role("status").first.inner_text() == f"The topic {name} was created."
        page.get_by_role("link", name="Produce", exact=True).click()
        page.locator("textarea[name=value]").fill("hello")
        page.get_by_role("button", name="Send").click()
        assert "Sent to partition" in page.get_by_role("status").first.inner_text()
        page.get_by_role("link", name="Settings", exact=True).click()
        page.get_by_label("Find a setting").fill("retention.ms")
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name="Change retention.ms", exact=True).click()
        page.get_by_label("New value").fill("60000")
        page.get_by_role("button", name="Show the change").click()
        assert page.locator("ins").inner_text() == "60000"
        page.get_by_role("button", name="Apply").click()
        page.goto(f"/topics/{name}")
        page.get_by_role("link", name="Delete the topic").click()
        page.get_by_label("Type the topic's name to confirm").fill(name)
        page.get_by_role("button", name=f"Delete {name}").click()
        assert page.get_by_role("status").first.inner_text() == f"The topic {name} was deleted."
    assert name not in broker.topics()


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


def test_every_control_is_reachable_by_keyboard_with_visible_focus(browser, served):
    with page_of(browser, served) as page:
        page.goto("/topics/new")
        focused = []
        for _ in range(30):
            page.keyboard.press("Tab")
            focused.append(page.evaluate("""() => {
                const e = document.activeElement;
                return [e.name || e.textContent.trim(), getComputedStyle(e).outlineStyle];
            }"""))
        names = {name for name, _ in focused}
        assert {"Topics", "name", "partitions", "replicas", "settings", "Create"} <= names
        assert all(style != "none" for name, style in focused
                   if name in ("Topics", "name", "Create"))


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
