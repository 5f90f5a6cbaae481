"""The console's own permissions: browse, export, produce, administer, by user.

Owns: the rules of console.permissions.file.
Invariants: they only restrict what the cluster's ACLs allow; without a file, everything is allowed;
  with one, a permission that it does not name is denied.

The file is TOML, with names of users, which may contain * and ?:

    browse = ["*"]
    export = ["User:ann"]
    produce = ["User:ann", "User:team-*"]
    administer = ["User:root"]
"""

from __future__ import annotations

import fnmatch
import tomllib

from pylog.config.errors import ConfigError
from pylog.console.pages import PERMISSIONS

SETTING = "console.permissions.file"


class Permissions:
    """patterns: of users, by permission; None allows everything."""

    def __init__(self, patterns: dict[str, list[str]] | None):
        self._patterns = patterns

    def permits(self, principal: str, permission: str) -> bool:
        """Return True if the user has the permission."""
        return self._patterns is None or any(
            fnmatch.fnmatchcase(f"User:{principal}", pattern)
            for pattern in self._patterns.get(permission, ()))

    def grants(self, principal: str, permission: str) -> bool:
        """Return True if a rule gives the user the permission."""
        return self._patterns is not None and self.permits(principal, permission)


def load(path: str) -> Permissions:
    """Read a file; an empty path allows everything. Raises ConfigError, OSError."""
    if not path:
        return Permissions(None)
    with open(path, "rb") as file:
        try:
            given = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{SETTING}={path}: {error}") from None
    for name, patterns in given.items():
        if name not in PERMISSIONS:
            raise ConfigError(f"{SETTING}={path}: there is no permission {name}; there are: "
                              f"{', '.join(PERMISSIONS)}")
        if not isinstance(patterns, list) or not all(isinstance(one, str) for one in patterns):
            raise ConfigError(f"{SETTING}={path}: {name}: expected a list of texts")
    return Permissions(given)
