"""The documentation site: its navigation, its links, and its versions."""

import json
import re
from pathlib import Path

import pytest

from release import site

HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("site") / "pages"
    site.copy_pages(target)
    return target


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as Python-Markdown makes them."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
            for heading in HEADING.findall(plain)}


def broken(page: Path, root: Path) -> list[str]:
    """Return the links of a page that lead to no page, file or heading of the site."""
    found = []
    text = "".join(part for part in site.CODE.split(page.read_text()) if not part.startswith("`"))
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", text):
        there = (page.parent / target).resolve() if target else page
        if not there.is_relative_to(root) or not there.exists():
            found.append(target)
        elif anchor and anchor not in anchors(there.read_text()):
            found.append(f"{target}#{anchor}")
    return found


def test_the_navigation_has_each_page_once(pages):
    listed = [page for _, _, page in site.navigation()]
    assert sorted(listed) == sorted(str(page.relative_to(pages)) for page in pages.rglob("*.md"))


def test_the_table_of_contents_agrees_with_the_navigation():
    assert (site.ROOT / site.CONTENTS).read_text() == site.contents(), "run `make docs`"


def test_links_of_every_page_lead_somewhere(pages):
    found = {str(page.relative_to(pages)): gone for page in pages.rglob("*.md")
             if (gone := broken(page, pages))}
    assert found == {}


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# Other\n\n## Some heading\n")
    page = tmp_path / "page.md"
    page.write_text("[a](gone.md) [b](other.md#some-heading) [c](other.md#gone) `[d](code.md)`\n")
    assert broken(page, tmp_path) == ["gone.md", "other.md#gone"]


def test_a_link_to_a_file_outside_the_site_becomes_text():
    text = "[code](../../pylog/cli.py), [start](../../README.md#start), `[x](gone.md)`"
    assert site.relinked(text, "docs/howto/install.md") == (
        "code, [start](../index.md#start), `[x](gone.md)`")


def test_the_index_for_language_models_lists_every_page():
    text = site.index_for_models("A broker")
    assert text.startswith("# pylog\n\n> A broker\n")
    assert all(f"({page})" in text for _, _, page in site.navigation())


def test_a_version_replaces_only_its_own_folder(tmp_path):
    for version in ("0.1.0", "0.10.0", "0.2.0", "0.1.0"):
        built = tmp_path / "built"
        built.mkdir()
        (built / "index.html").write_text(version)
        site.publish(built, tmp_path / "html", version)
    rows = json.loads((tmp_path / "html/versions.json").read_text())
    assert [row["version"] for row in rows] == ["0.10.0", "0.2.0", "0.1.0"]
    assert [row["aliases"] for row in rows] == [["latest"], [], []]
    assert (tmp_path / "html/0.2.0/index.html").read_text() == "0.2.0"
    assert "url=0.10.0/" in (tmp_path / "html/index.html").read_text()


def test_the_site_builds_without_warnings(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "SITE", tmp_path)
    built = site.build("0.0.1")
    assert "Producer.send" in (built / "reference/api/client/index.html").read_text()
    assert (built / "howto/install.md").exists() and (built / "search.json").exists()
