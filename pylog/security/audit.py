"""The audit log: who, from where, did what to which resource, and what decided about it.

Owns: the file, its queue and the thread that writes it.
Invariants: (1) nothing waits for an outlet: what it has no room for is counted, and its next line
  says how many it were; (2) no secret is in a line; (3) lines that cannot be written to the file
  are in the log instead, and do not hold up the end; (4) who reads and writes the audit log's own
  topic makes no lines by that: they would have no end.
Source: none; a line is one JSON object.
"""

from __future__ import annotations

import json
import logging
import threading
from queue import Full, Queue

from pylog import supervisor
from pylog.protocol import tables
from pylog.security import authorizer

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pylog.security.authorizer import Decision, Rule
    from pylog.security.identities import Principal

log = logging.getLogger("pylog.audit")

LINES_MAX = 10_000     # That wait to be written,
BYTES_MAX = 16 << 20   # and of them: names may be long, and strangers choose them.
OPERATION_NAMES = (
    "Unknown", "Any", "All", "Read", "Write", "Create", "Delete", "Alter", "Describe",
    "ClusterAction", "DescribeConfigs", "AlterConfigs", "IdempotentWrite", "CreateTokens",
    "DescribeTokens", "TwoPhaseCommit")
RESOURCE_NAMES = ("Unknown", "Any", "Topic", "Group", "Cluster", "TransactionalId",
                  "DelegationToken", "User")
# Allowed ones of these are data access, looks, or what nodes do all the time: written when they are
# asked for.
COMMON = frozenset((authorizer.READ, authorizer.WRITE, authorizer.DESCRIBE,
                    authorizer.DESCRIBE_CONFIGS, authorizer.IDEMPOTENT_WRITE,
                    authorizer.CLUSTER_ACTION))


class Outlet:
    """Where lines go; dropped: how many it had no room for."""

    def __init__(self) -> None:
        self.dropped = 0
        self._dropped = 0     # Since the last line.
        self._came = self._went = 0     # Bytes; who offers counts the one, who writes the other.

    def offer(self, line: str) -> bool:
        """False: there is no room for it."""
        raise AssertionError(type(self))

    def _has_room(self, size: int) -> bool:
        return self._came - self._went + size <= BYTES_MAX

    def take(self, line: dict[str, object]) -> None:
        """Keeps (1)."""
        if self._dropped:
            line = {**line, "dropped_before": self._dropped}
        if self.offer(json.dumps(line, ensure_ascii=False)):
            self._dropped = 0
        else:
            self._dropped += 1
            self.dropped += 1


class AuditLog:
    """Lines to each of the outlets. everything: allowed reads and writes too. topic: the name of
    the one that is an outlet, or ""."""

    def __init__(self, outlets: Sequence[Outlet], everything: bool, now_ms: Callable[[], int],
                 topic: str = ""):
        self._outlets = outlets
        self._everything = everything
        self._now_ms = now_ms
        self._topic = topic

    @property
    def dropped(self) -> int:
        """Lines that an outlet had no room for."""
        return sum(outlet.dropped for outlet in self._outlets)

    def decided(self, principal: Principal, host: str, api_key: int, operation: int,
                resource_type: int, name: str, decision: Decision) -> None:
        """api_key: of the request that the decision is about."""
        if decision.allowed and operation in COMMON and (
                not self._everything or self._is_own(resource_type, name)):
            return
        line = {
            "time_ms": self._now_ms(), "principal": str(principal), "host": host,
            "request": tables.api_name(api_key), "operation": OPERATION_NAMES[operation],
            "resource": RESOURCE_NAMES[resource_type], "name": name, "allowed": decision.allowed,
            "by": decision.reason if decision.rule is None else shown(decision.rule)}
        for outlet in self._outlets:
            outlet.take(line)

    def _is_own(self, resource_type: int, name: str) -> bool:
        """Keeps (4)."""
        return resource_type == authorizer.TOPIC and name == self._topic != ""


class AuditFile(Outlet):
    """Lines to the end of the file at `path`. Raises OSError."""

    def __init__(self, path: str):
        super().__init__()
        self._lines: Queue[str | None] = Queue(LINES_MAX)
        self._file = open(path, "ab", buffering=0)   # Whole lines, for whoever reads them.
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
                # Keeps (3): a full disk, say. The next lines are tried all the same.
                log.error("the audit log is not written", extra={
                    "file": self._file.name, "line": line, "reason": error.strerror})
            except Exception:
                supervisor.report("audit", "the audit log is not written", line=line)
            self._went += len(line)
        self._file.close()

    def _append(self, data: bytes) -> None:
        """A disk that is nearly full takes a part of a line: the next one does not go on in it.
        Raises OSError."""
        if self._is_amid_a_line:
            data = b"\n" + data
        while data:
            data = data[self._file.write(data):]
            self._is_amid_a_line = bool(data)

    def close(self) -> None:
        """Returns when every line is written."""
        self._lines.put(None)
        self._thread.join()


def shown(rule: Rule) -> str:
    """A rule in one line."""
    pattern = {authorizer.LITERAL: "literal", authorizer.PREFIXED: "prefixed"}.get(
        rule.pattern_type, str(rule.pattern_type))
    return (f"{'Allow' if rule.permission == authorizer.ALLOW else 'Deny'} {rule.principal} "
            f"{OPERATION_NAMES[rule.operation]} from {rule.host} on {pattern} "
            f"{RESOURCE_NAMES[rule.resource_type]} {rule.resource_name}")

