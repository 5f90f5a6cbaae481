"""Audit lines of the registry: changes, and requests that were refused.

Owns: the audit file.
Invariants: a line contains the user, the address and the path, never a body.
Source: pylog.security.authorization.audit, whose file format this is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pylog.registry.access import User
from pylog.security.authorization.audit import AuditFile

TARGET_CHARACTERS_MAX = 1000


class Audit:
    """path: of the file, "" for none. Raises OSError if it cannot be opened."""

    def __init__(self, path: str, now_ms: Callable[[], int]):
        self._now_ms = now_ms
        self._file = AuditFile(path) if path else None

    def write(self, method: str, target: str, user: User, allowed: bool) -> None:
        """Write one line."""
        if self._file is None:
            return
        line: dict[str, Any] = {
            "time_ms": self._now_ms(), "principal": f"User:{user.name}", "host": user.address,
            "request": "registry", "operation": method,
            "resource": target[:TARGET_CHARACTERS_MAX], "allowed": allowed}
        self._file.take(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
