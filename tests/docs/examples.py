"""Reads the examples of the pages.

Owns: nothing.
Invariants: an example is a fenced block with a language; other fenced blocks are shown only.
"""

import re
from pathlib import Path

from tests import tidy

ROOT = Path(tidy.ROOT)
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
ADDRESS = "localhost:9092"


def pages(*folders: str) -> list[str]:
    """Return the tracked pages below these folders of docs/."""
    return [name for name in tidy.tracked(ROOT) if name.endswith(".md")
            and name.startswith(tuple(f"docs/{folder}/" for folder in folders))]


def blocks(page: str, language: str) -> list[str]:
    """Return the page's blocks in a language, without their indentation."""
    text = (ROOT / page).read_text()
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
            for indent, found, code in BLOCK.findall(text) if found == language]
