"""Chromium for tests of pages, and axe's rules."""

import contextlib
import shutil

import pytest

VIEWPORT = {"width": 1280, "height": 900}
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
WAIT_MS = 60_000


@contextlib.contextmanager
def chromium():
    """Yield a browser. Skips the test if Chromium is missing."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def page_of(browser, served, **options):
    """Yield a page. Fails if a script failed or broke the content security policy."""
    context = browser.new_context(base_url=served.url, **{"viewport": VIEWPORT, **options})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text)
            if "Content Security Policy" in line.text else None)
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
    try:
        yield page
        assert problems == []
    finally:
        context.close()


def violations(page):
    """Return axe's violations of WCAG A and AA as (rule, elements)."""
    if not page.evaluate("'axe' in window"):
        from axe_playwright_python.base import AXE_SCRIPT

        page.evaluate(AXE_SCRIPT)
    found = page.evaluate("options => axe.run(document, options)", {
        "runOnly": {"type": "tag", "values": WCAG}, "resultTypes": ["violations"]})
    return [(row["id"], [node["html"][:200] for node in row["nodes"]])
            for row in found["violations"]]
