"""The address of the schema registry, and whether its settings protect it.

Owns: nothing.
Invariants: rights need a login; a login is only possible if the cluster has users.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pylog.config import listeners
from pylog.config.errors import ConfigError

NONE, BASIC, ACL = "none", "basic", "acl"
LISTENER = "schema.registry.listener"


def address(listener: str) -> tuple[str, int]:
    """Return (host, port) of schema.registry.listener. Raises ConfigError."""
    try:
        parts = urlsplit(f"//{listener}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None:
        raise ConfigError(f"{LISTENER}={listener}: expected host:port, such as 127.0.0.1:8081")
    return host, port


def check(settings: Any, has_users: bool) -> str:
    """Check the settings of access and return a warning, or "". has_users: the cluster requires
    SASL. Raises ConfigError.
    """
    host, _ = address(settings[LISTENER])
    authentication = settings["schema.registry.authentication"].lower()
    authorization = settings["schema.registry.authorization"].lower()
    if authentication == BASIC and not has_users:
        raise ConfigError(
            "schema.registry.authentication=basic: the registry checks passwords by a login to "
            "the cluster, but its connection to the cluster does not use SASL. Choose a SASL "
            "listener, or set schema.registry.authentication=none")
    if authorization == ACL and authentication == NONE:
        raise ConfigError("schema.registry.authorization=acl needs users: set "
                          "schema.registry.authentication=basic")
    if authentication == NONE and not listeners.is_loopback(host):
        return (f"everyone who reaches the schema registry at {settings[LISTENER]} can change "
                "schemas; set schema.registry.authentication=basic")
    return ""
