"""Save the table of a run: every run in the cache, full runs in bench/results/full.md.

Owns: bench/results/full.md, the folder results/ of the bench's cache.
Invariants: the page has one section per program, for its last full run.
"""

import json
import re
import time
from pathlib import Path

from bench.machine import commit_line
from bench.programs import cache_dir

PAGE = Path(__file__).resolve().parent / "results" / "full.md"


def save(text: str, samples: dict, suffix: str = "") -> Path:
    """Save the table and its samples; return the path of the table."""
    folder = cache_dir() / "results"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{commit_line()}{suffix}"
    (folder / f"{stem}.json").write_text(json.dumps({**samples, "table": text}, indent=1))
    path = folder / f"{stem}.md"
    path.write_text(text)
    return path


def publish(title: str, text: str, page: Path = PAGE) -> None:
    """Replace the section `title` of the page with this run."""
    head, found, rest = page.read_text().partition(f"## {title}\n")
    if not found:
        raise ValueError(f"{page} has no section {title!r}: add the line '## {title}'")
    after = re.search(r"^## ", rest, re.M)
    tail = rest[after.start():] if after else ""
    page.write_text(f"{head}{found}\n{text.strip()}\n" + (f"\n{tail}" if tail else ""))
