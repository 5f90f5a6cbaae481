"""Totals over partitions of which some are unreadable.

Owns: nothing.
Invariants: a total that excludes an unreadable partition is marked as a lower bound, and the
  command that prints it fails and names the partition.
Source: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pylog.protocol.counts import counted
from pylog.tools.cli.output import AtLeast
from pylog.tools.cli.session import ToolError

NAMED_MAX = 10


def total(values: Iterable[int | None]) -> int | None:
    """Return the sum. It is an AtLeast if some values are None, and None if all of them are."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    if len(known) == len(listed):
        return sum(known)
    return AtLeast(sum(known)) if known else None


def check_complete(missing: Iterable[Mapping[str, Any]]) -> None:
    """Raise ToolError if partitions are missing from the output.

    missing: rows with topic, partition and error.
    """
    named = {f"{row['topic']}-{row['partition']}": row["error"] for row in missing}
    if named:
        shown = ", ".join(f"{part} ({error})" for part, error in [*named.items()][:NAMED_MAX])
        more = f" and {len(named) - NAMED_MAX} more" if len(named) > NAMED_MAX else ""
        raise ToolError(f"cannot read {counted(len(named), 'partition')}: {shown}{more}")
