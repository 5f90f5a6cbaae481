"""Finished rebalances, kept across restarts in two JSON-lines files next to the logs.

Owns: the files, and the lines waiting to be written.
Invariants: each file has at most about BYTES_MAX, and the older one is deleted first; callers never
  wait for the disk, and lines that do not fit into the queue or onto the disk are counted in the
  next written line; a partial line after a crash costs only that line.
Source: none. See rebalance_tracker for the contents of a line.
"""

import asyncio
import json
import logging
import os
from typing import Any

from pylog import supervisor
from pylog.coordinator.groups.state import rebalance_tracker

FILE, OLDER = "group-rebalances.jsonl", "group-rebalances.1.jsonl"
BYTES_MAX = 4 << 20
LINES_MAX = 10_000  # Waiting to be written.
FOUND_MAX = 100

log = logging.getLogger("pylog.coordinator")


class History:
    """The rebalance history in a log directory."""

    def __init__(self, directory: str):
        self._path = os.path.join(directory, FILE)
        self._older = os.path.join(directory, OLDER)
        self._lines: list[bytes] = []
        self._dropped = 0
        self._writing: asyncio.Task[None] | None = None

    def add(self, rebalance: dict[str, Any]) -> None:
        """Queue a rebalance for writing and log it. Call on the event loop; never blocks."""
        log.info("a group rebalanced", extra={
            "group": rebalance["group"], "generation": rebalance["generation"],
            "members": rebalance["members"], "ms": rebalance["took_ms"],
            "reason": rebalance_tracker.sentence(rebalance)})
        if len(self._lines) == LINES_MAX:
            self._dropped += 1
            return
        if self._dropped:
            rebalance = {**rebalance, "dropped_before": self._dropped}
            self._dropped = 0
        self._lines.append(json.dumps(rebalance).encode() + b"\n")
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(
                supervisor.reporting("rebalance history", self._write_all()))

    async def close(self) -> None:
        """Wait until all queued lines are written or have failed."""
        if self._writing is not None:
            await self._writing

    async def _write_all(self) -> None:
        while self._lines:
            lines, self._lines = self._lines, []
            try:
                await asyncio.to_thread(self._write, b"".join(lines))
            except OSError as error:
                self._dropped += len(lines)
                log.warning("cannot write the rebalance history", extra={
                    "file": self._path, "reason": error.strerror})

    def _write(self, data: bytes) -> None:
        with open(self._path, "ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                # Complete a partial line of a crash.
                data = data if file.read(1) == b"\n" else b"\n" + data
            file.write(data)
            is_full = end + len(data) >= BYTES_MAX
        if is_full:
            os.replace(self._path, self._older)

    def find(self, group_id: str, limit: int) -> list[dict[str, Any]]:
        """Return the latest rebalances of a group, newest first; none if unreadable."""
        wanted = b'"group": %s,' % json.dumps(group_id).encode()
        found: list[dict[str, Any]] = []
        for path in (self._path, self._older):
            try:
                with open(path, "rb") as file:
                    lines = file.read().splitlines()
            except OSError:
                continue
            for line in reversed(lines):
                if len(found) == min(limit, FOUND_MAX):
                    return found
                if wanted in line:
                    row = _row(line)
                    if row is not None and row["group"] == group_id:
                        found.append(row)
        return found


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None
