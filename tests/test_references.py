"""Files and links named by docs and comments exist."""

import re
from pathlib import Path

import pytest

from tests.checks import tidy

ROOT = Path(__file__).resolve().parent.parent
DOCS = [ROOT / name for name in tidy.tracked(ROOT) if name.endswith(".md")]
FILE = re.compile(
    r"\b((?:csrc|pylog|tests|bench|spark|docs)/[\w./-]*\w\.(?:py|pyx|pyi|c|h|md|msg))\b")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def missing(text: str) -> list[str]:
    """Return files that a text names and that do not exist; bench/ has a csrc/ too."""
    return [name for name in FILE.findall(text)
            if not (ROOT / name).exists() and not (ROOT / "bench" / name).exists()]


def dead_links(text: str, folder: Path) -> list[str]:
    """Return relative links of a page in `folder` that lead nowhere."""
    return [link for link in LINK.findall(text) if not (folder / link).exists()]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_files_named_by_a_page_exist(path):
    text = path.read_text()
    assert missing(text) + dead_links(text, path.parent) == []


def test_files_named_by_code_exist():
    found = {name: gone for name in tidy.tracked(ROOT)
             if Path(name).suffix in tidy.SOURCES and not Path(name).stem.startswith("test_")
             and (gone := missing((ROOT / name).read_text()))}
    assert found == {}


def test_missing_file_reference_is_reported():
    assert missing("see csrc/log/gone.h, csrc/log/log.h, csrc/replay.c") == ["csrc/log/gone.h"]
    assert dead_links("[this](gone.md#top), [that](README.md#start), [x](https://x.org)", ROOT) == [
        "gone.md"]
