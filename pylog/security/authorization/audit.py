"""The audit log: each line contains the principal, its address, the operation, the resource and the
rule that decided.

Owns: the file, its queue and the thread that writes it.
Invariants: a full outlet never blocks a request: the line is dropped and counted, and the next line
  contains the count; no line contains a secret; a line that cannot be written to the file goes to
  the broker's log instead and does not delay shutdown; allowed reads and writes of the audit log's
  own topic are not audited, because each line would cause another.
Source: none; each line is a JSON object.
"""

from __future__ import annotations

import json
import logging
import threading
from queue import Full, Queue

from pylog import supervisor
from pylog.protocol import tables
from pylog.security import authorizer
from pylog.security.authorizer import OPERATION_NAMES, RESOURCE_NAMES, shown

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pylog.security.authorizer import Decision
    from pylog.security.principals import Principal

log = logging.getLogger("pylog.audit")

LINES_MAX = 10_000  # Maximum number of queued lines.
BYTES_MAX = 16 << 20  # Of queued lines. Clients choose the length of names.
# Allowed operations of these kinds are data access, queries, or routine requests of nodes. They are
# only written if `everything` is set.
COMMON = frozenset((authorizer.READ, authorizer.WRITE, authorizer.DESCRIBE,
                    authorizer.DESCRIBE_CONFIGS, authorizer.IDEMPOTENT_WRITE,
                    authorizer.CLUSTER_ACTION))


class AuditSink:
    """A destination of lines. dropped: number of lines dropped because the outlet was full."""

    def __init__(self) -> None:
        self.dropped = 0
        self._dropped = 0  # Since the last line.
        self._came = self._went = 0  # Bytes. Each has a single writer thread.

    def offer(self, line: str) -> bool:
        """Return False if the outlet is full."""
        raise AssertionError(type(self))

    def _has_room(self, size: int) -> bool:
        return self._came - self._went + size <= BYTES_MAX

    def take(self, line: dict[str, object]) -> None:
        """Write the line, or count it as dropped if the outlet is full."""
        if self._dropped:
            line = {**line, "dropped_before": self._dropped}
        if self.offer(json.dumps(line, ensure_ascii=False)):
            self._dropped = 0
        else:
            self._dropped += 1
            self.dropped += 1


class AuditLog:
    """Writes decisions to each outlet. everything: include allowed reads and writes. topic: name of
    the topic that the audit log is written to, or "".
    """

    def __init__(self, outlets: Sequence[AuditSink], everything: bool, now_ms: Callable[[], int],
                 topic: str = ""):
        self._sinks = outlets
        self._everything = everything
        self._now_ms = now_ms
        self._topic = topic

    @property
    def dropped(self) -> int:
        """Total of lines dropped because an outlet was full."""
        return sum(sink.dropped for sink in self._sinks)

    def decided(self, principal: Principal, host: str, api_key: int, operation: int,
                resource_type: int, name: str, decision: Decision) -> None:
        """Write a line about a decision. api_key: of the request that needed the decision."""
        if decision.allowed and operation in COMMON and (
                not self._everything or self._is_own(resource_type, name)):
            return
        line = {
            "time_ms": self._now_ms(), "principal": str(principal), "host": host,
            "request": tables.api_name(api_key), "operation": OPERATION_NAMES[operation],
            "resource": RESOURCE_NAMES[resource_type], "name": name, "allowed": decision.allowed,
            "by": decision.reason if decision.rule is None else shown(decision.rule)}
        for sink in self._sinks:
            sink.take(line)

    def _is_own(self, resource_type: int, name: str) -> bool:
        """Return True for the audit log's own topic, whose reads and writes are not audited."""
        return resource_type == authorizer.TOPIC and name == self._topic != ""


class AuditFile(AuditSink):
    """Appends lines to the file at `path`. Raises OSError."""

    def __init__(self, path: str):
        super().__init__()
        self._lines: Queue[str | None] = Queue(LINES_MAX)
        self._file = open(path, "ab", buffering=0)  # Unbuffered: readers see whole lines.
        self._is_amid_a_line = False
        self._thread = supervisor.thread("audit", self._write, threading.Event())
        self._thread.start()

    def offer(self, line: str) -> bool:
        if not self._has_room(len(line)):
            return False
        try:
            self._lines.put_nowait(line)
        except Full:
            return False
        self._came += len(line)
        return True

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._append(f"{line}\n".encode(errors="backslashreplace"))
            except OSError as error:
                # For example a full disk. The next lines are tried again.
                log.error("the audit log cannot be written", extra={
                    "file": self._file.name, "line": line, "reason": error.strerror})
            except Exception:
                supervisor.report("audit", "the audit log cannot be written", line=line)
            self._went += len(line)
        self._file.close()

    def _append(self, data: bytes) -> None:
        """Append a line. After a partial write, for example to a nearly full disk, start a new line
        first. Raises OSError.
        """
        if self._is_amid_a_line:
            data = b"\n" + data
        while data:
            data = data[self._file.write(data):]
            self._is_amid_a_line = bool(data)

    def close(self) -> None:
        """Wait until every queued line is written, then close the file."""
        self._lines.put(None)
        self._thread.join()
