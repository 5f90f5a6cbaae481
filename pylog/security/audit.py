"""The audit log: who, from where, did what to which resource, and what decided about it.

Owns: the file, its queue and the thread that writes it.
Called by: server.guard.
Invariants: (1) nothing waits for the file: what the queue has no room for is counted, and the next
  line says how many it were; (2) no secret is in a line; (3) lines that cannot be written are in
  the log instead, and do not hold up the end.
Source: none; a line is one JSON object.
"""

from __future__ import annotations

import json
import logging
import threading
from queue import Full, Queue

from pylog.security import authorizer

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog.config import Settings
    from pylog.security.authorizer import Decision, Rule
    from pylog.security.identities import Principal

log = logging.getLogger("pylog.audit")

LINES_MAX = 10_000     # That wait to be written.
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


class AuditLog:
    """Lines to the end of the file at `path`. everything: allowed reads and writes too."""

    def __init__(self, path: str, everything: bool, now_ms: Callable[[], int]):
        self._everything = everything
        self._now_ms = now_ms
        self.dropped = 0      # Of all.
        self._dropped = 0     # Since the last line.
        self._lines: Queue[str | None] = Queue(LINES_MAX)
        self._file = open(path, "ab", buffering=0)   # Whole lines, for whoever reads them.
        self._thread = threading.Thread(target=self._write, name="audit", daemon=True)
        self._thread.start()

    def decided(self, principal: Principal, host: str, operation: int, resource_type: int,
                name: str, decision: Decision) -> None:
        if decision.allowed and not self._everything and operation in COMMON:
            return
        line = {
            "time_ms": self._now_ms(), "principal": str(principal), "host": host,
            "operation": OPERATION_NAMES[operation], "resource": RESOURCE_NAMES[resource_type],
            "name": name, "allowed": decision.allowed,
            "by": decision.reason if decision.rule is None else shown(decision.rule)}
        if self._dropped:
            line["dropped_before"] = self._dropped
        try:
            self._lines.put_nowait(json.dumps(line, ensure_ascii=False))
        except Full:
            # Keeps (1).
            self._dropped += 1
            self.dropped += 1
        else:
            self._dropped = 0

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._file.write(f"{line}\n".encode(errors="backslashreplace"))
            except OSError as error:
                # Keeps (3): a full disk, say. The next lines are tried all the same.
                log.error("the audit log is not written", extra={
                    "file": self._file.name, "line": line, "reason": error.strerror})
        self._file.close()

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


def of(settings: Settings, now_ms: Callable[[], int]) -> AuditLog | None:
    """The audit log that the settings ask for. Raises OSError."""
    path = settings["audit.log.file"]
    return AuditLog(path, settings["audit.log.data.enable"], now_ms) if path else None
