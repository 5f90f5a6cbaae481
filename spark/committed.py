"""Return the files that Spark's streaming file sink has committed to a directory.

Owns: nothing.
Invariants: a file counts only if a micro-batch that lists it was committed: leftovers of a killed
  batch do not count.
Source: Spark's FileStreamSinkLog: `_spark_metadata/<batch>` and `<batch>.compact`: "v1", then one
  file per line.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOG = "_spark_metadata"


def committed(directory: str) -> list[str]:
    """Return paths in batch order; empty if no batch was committed."""
    batches = {}
    for path in (Path(directory) / LOG).glob("[0-9]*"):
        number, _, kind = path.name.partition(".")
        if number.isdigit() and kind in ("", "compact"):
            batches[int(number), kind == "compact"] = path
    # The latest compact file lists everything that was committed before it.
    compact = max((number for number, is_compact in batches if is_compact), default=-1)
    found = []
    for (batch, is_compact), path in sorted(batches.items()):
        if batch > compact or (batch == compact and is_compact):
            found += _files(path)
    return found


def _files(path: Path) -> list[str]:
    version, *lines = path.read_text().splitlines()
    assert version == "v1", (path, version)
    return [unquote(urlsplit(json.loads(line)["path"]).path) for line in lines]
