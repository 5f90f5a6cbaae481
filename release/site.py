"""Build the documentation site: `python -m release.site [--serve]`.

Owns: build/site/: pages/ (the copied sources), html/ (the built site, one folder per version).
Invariants: a link that leaves the site becomes plain text, so that a strict build finds every
  broken link; a version replaces only its own folder and its line in versions.json.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pylog

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "zensical.toml"
SITE = ROOT / "build/site"
# Pages of the site that are not below docs/.
OUTSIDE = {"README.md": "index.md", "CHANGELOG.md": "project/changelog.md",
           "SECURITY.md": "project/security.md"}
# For contributors: they read the pages in the repository.
NOT_PUBLISHED = "internals"
CONTENTS = "docs/README.md"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)((?:#[^)]*)?)\)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def place(source: str) -> str | None:
    """Return a repository file's path in the site, or None if the site does not have it."""
    if source in OUTSIDE or source == CONTENTS:
        return OUTSIDE.get(source)
    inside = source.removeprefix("docs/")
    return None if inside == source or inside.split("/")[0] == NOT_PUBLISHED else inside


def relinked(text: str, source: str) -> str:
    """Return a page's text with its links as the site has them."""
    here = place(source)
    assert here is not None, source

    def link(found: re.Match[str]) -> str:
        picture, label, target, anchor = found.groups()
        there = place(os.path.normpath(os.path.join(os.path.dirname(source), target)))
        if there is None:
            return label
        return f"{picture}[{label}]({os.path.relpath(there, os.path.dirname(here) or '.')}{anchor})"

    return "".join(part if part.startswith("`") else LINK.sub(link, part)
                   for part in CODE.split(text))


def copy_pages(target: Path, root: Path = ROOT) -> None:
    """Copy the pages and their pictures into an empty folder."""
    shutil.rmtree(target, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "docs", *OUTSIDE], cwd=root, check=True,
                            capture_output=True, text=True).stdout.split()
    for source in listed:
        where = place(source)
        if where is None:
            continue
        copy = target / where
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            copy.write_text(relinked((root / source).read_text(), source))
        else:
            shutil.copyfile(root / source, copy)


def entries(nav: list, above: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (section, title, page) for each page of the navigation."""
    for item in nav:
        (title, below), = item.items()
        if isinstance(below, str):
            yield above, title, below
        else:
            yield from entries(below, f"{above}: {title}" if above else title)


def navigation() -> list[tuple[str, str, str]]:
    return list(entries(tomllib.loads(CONFIG.read_text())["project"]["nav"]))


def index_for_models(summary: str) -> str:
    """Return llms.txt: every page with the address of its Markdown source."""
    lines, section = [f"# pylog\n\n> {summary}\n"], ""
    for above, title, page in navigation():
        if above != section:
            section = above
            lines.append(f"\n## {section}\n")
        lines.append(f"- [{title}]({page})")
    return "\n".join(lines) + "\n"


def contents() -> str:
    """Return docs/README.md: the table of contents for readers of the repository."""
    lines = ["# Documentation\n\n`make docs` generates this page from `zensical.toml`.\n"]
    section = ""
    for above, title, page in navigation():
        if not above:
            continue
        if above != section:
            section = above
            lines.append(f"\n## {section}\n\n")
        source = next((source for source, there in OUTSIDE.items() if there == page), None)
        lines.append(f"- [{title}]({f'../{source}' if source else page})\n")
    lines.append("\n## Internals\n\n")
    for path in sorted((ROOT / "docs" / NOT_PUBLISHED).glob("*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({NOT_PUBLISHED}/{path.name})\n")
    return "".join(lines)


def publish(built: Path, html: Path, version: str) -> None:
    """Move a built site to its version's folder, and list all versions, the newest first."""
    target = html / version
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    built.rename(target)
    listed = html / "versions.json"
    known = json.loads(listed.read_text()) if listed.exists() else []
    versions = sorted({version, *(row["version"] for row in known)},
                      key=lambda name: [int(part) for part in re.findall(r"\d+", name)],
                      reverse=True)
    rows = [{"version": name, "title": name, "aliases": ["latest"] if name == versions[0] else []}
            for name in versions]
    listed.write_text(json.dumps(rows, indent=1) + "\n")
    (html / "index.html").write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={versions[0]}/">\n')


def build(version: str) -> Path:
    """Build one version strictly, without internet access; return its folder."""
    pages, built = SITE / "pages", SITE / "built"
    copy_pages(pages)
    config = CONFIG.read_text().replace("build/site/", "")
    (SITE / "zensical.toml").write_text(config)
    shutil.rmtree(built, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=SITE).returncode:
        raise SystemExit("The site was not built. Repair the links and pages named above.")
    project = tomllib.loads(config)["project"]
    # Each page also as Markdown: its address ends in .md.
    for page in pages.rglob("*.md"):
        shutil.copyfile(page, built / page.relative_to(pages))
    (built / "llms.txt").write_text(index_for_models(project["site_description"]))
    publish(built, SITE / "html", version)
    return SITE / "html" / version


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--version", default=pylog.__version__, help="folder of this build")
    parser.add_argument("--contents", action="store_true", help="only write docs/README.md")
    parser.add_argument("--serve", type=int, metavar="PORT", help="then serve it on this port")
    options = parser.parse_args()
    if options.contents:
        (ROOT / CONTENTS).write_text(contents())
        return
    print(build(options.version))
    if options.serve is not None:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=SITE / "html")
        with http.server.ThreadingHTTPServer(("127.0.0.1", options.serve), handler) as server:
            print(f"http://localhost:{server.server_port}/", flush=True)
            server.serve_forever()


if __name__ == "__main__":
    main()
