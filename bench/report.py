"""Where the table of a run goes: the cache for every run, docs/benchmarks.md for a full one.

Owns: docs/benchmarks.md, the folder results/ of the bench's cache.
Invariants: (1) the page has one section for each program, that of its last full run.
"""

import json
import re
import time
from pathlib import Path

from bench.machine import commit_line
from bench.programs import cache_dir

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def save(text: str, samples: dict, suffix: str = "") -> Path:
    """Keeps the table and the samples behind it; the path of the table."""
    folder = cache_dir() / "results"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{commit_line()}{suffix}"
    (folder / f"{stem}.json").write_text(json.dumps({**samples, "table": text}, indent=1))
    path = folder / f"{stem}.md"
    path.write_text(text)
    return path


def publish(title: str, text: str, page: Path = PAGE) -> None:
    """Replaces the section `title` of the page by this run. Keeps (1)."""
    head, found, rest = page.read_text().partition(f"## {title}\n")
    if not found:
        raise ValueError(f"{page} has no section {title!r}: add the line '## {title}'")
    after = re.search(r"^## ", rest, re.M)
    tail = rest[after.start():] if after else ""
    page.write_text(f"{head}{found}\n{text.strip()}\n" + (f"\n{tail}" if tail else ""))
