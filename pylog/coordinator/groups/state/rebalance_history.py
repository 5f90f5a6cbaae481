"""The rebalances that are over, kept across restarts: two files of JSON lines beside the logs.

Owns: the files, and the lines that wait for them.
Invariants: (1) the files have BYTES_MAX each at most, the older one goes first; (2) nothing waits
  for the disk: what finds no room, in the queue or on the disk, is counted, and the next line that
  is written says how many it were; (3) half a line of a crash costs that line only.
Source: none; a line is what coordinator.rebalances tells.
"""

import asyncio
import json
import logging
import os
from typing import Any

from pylog import supervisor
from pylog.coordinator.groups.state import rebalance_tracker as rebalances

FILE, OLDER = "group-rebalances.jsonl", "group-rebalances.1.jsonl"
BYTES_MAX = 4 << 20
LINES_MAX = 10_000      # That wait to be written.
FOUND_MAX = 100

log = logging.getLogger("pylog.coordinator")


class History:
    """In a log directory."""

    def __init__(self, directory: str):
        self._path = os.path.join(directory, FILE)
        self._older = os.path.join(directory, OLDER)
        self._lines: list[bytes] = []
        self._dropped = 0
        self._writing: asyncio.Task[None] | None = None

    def add(self, rebalance: dict[str, Any]) -> None:
        """On the event loop. Keeps (2)."""
        log.info("a group rebalanced", extra={
            "group": rebalance["group"], "generation": rebalance["generation"],
            "members": rebalance["members"], "ms": rebalance["took_ms"],
            "reason": rebalances.sentence(rebalance)})
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
        """Returns when what was added is written, or could not be."""
        if self._writing is not None:
            await self._writing

    async def _write_all(self) -> None:
        while self._lines:
            lines, self._lines = self._lines, []
            try:
                await asyncio.to_thread(self._write, b"".join(lines))
            except OSError as error:
                self._dropped += len(lines)
                log.warning("the history of rebalances is not written", extra={
                    "file": self._path, "reason": error.strerror})

    def _write(self, data: bytes) -> None:
        with open(self._path, "ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                # Keeps (3).
                data = data if file.read(1) == b"\n" else b"\n" + data
            file.write(data)
            is_full = end + len(data) >= BYTES_MAX
        if is_full:
            os.replace(self._path, self._older)

    def find(self, group_id: str, limit: int) -> list[dict[str, Any]]:
        """The last rebalances of a group, the newest first; none when the files cannot be read."""
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
