"""Audit lines of the console: changes, logins, record reads and downloads.

Owns: the audit file, and the newest lines in memory for the page /audit.
Invariants: a line contains principal, address and a hash of the session, never a session id, a
  password or the content of a record; a full queue drops and counts lines, and never delays a
  request.
Source: pylog.security.authorization.audit, whose file format this is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pylog.security.authorization.audit import AuditFile

LINES_SHOWN_MAX = 1000
TEXT_CHARACTERS_MAX = 1000


class Audit:
    """path: of the file, "" for none. Raises OSError if it cannot be opened."""

    def __init__(self, path: str, now_ms: Callable[[], int]):
        self._now_ms = now_ms
        self._file = AuditFile(path) if path else None
        self.lines: deque[dict[str, Any]] = deque(maxlen=LINES_SHOWN_MAX)  # Newest last.

    def write(self, name: str, *, principal: str, address: str, session: str, cluster: str = "",
              allowed: bool = True, **details: Any) -> None:
        """Write one line. name: of the action, "topics.create". details: JSON values."""
        line: dict[str, Any] = {
            "time_ms": self._now_ms(), "principal": f"User:{principal}", "host": address,
            "request": "console", "operation": name, "session": session, "cluster": cluster,
            "allowed": allowed,
            **{key: value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else value
               for key, value in details.items()}}
        self.lines.append(line)
        if self._file is not None:
            self._file.take(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
