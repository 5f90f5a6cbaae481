"""How the web console logs users in, and whether its address may be open without a login.

Owns: nothing.
Invariants: without a login, only programs of this machine reach the console, unless
  console.insecure allows others.
"""

from urllib.parse import urlsplit

from . import listeners
from .errors import ConfigError

NONE, SASL = "none", "sasl"
LISTENER = "console.listener"


def address(listener: str) -> tuple[str, int]:
    """Return (host, port) of console.listener. Raises ConfigError."""
    try:
        parts = urlsplit(f"//{listener}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None:
        raise ConfigError(f"{LISTENER}={listener}: expected host:port, such as 127.0.0.1:8080")
    return host, port


def is_loopback(listener: str) -> bool:
    """Return True if only this machine reaches console.listener. Raises ConfigError."""
    return listeners.is_loopback(address(listener)[0])


def auth(settings, needs_login: bool) -> str:
    """Return SASL or NONE. needs_login: the cluster requires SASL, and the client settings have no
    user. Raises ConfigError if the console would be open to everyone.
    """
    chosen = settings["console.auth"] or (SASL if needs_login else NONE)
    chosen = chosen.lower()
    if chosen == NONE and not is_loopback(settings[LISTENER]) and not settings["console.insecure"]:
        raise ConfigError(
            f"{LISTENER}={settings[LISTENER]} without a login: everyone who reaches this address "
            "could use the cluster. Set console.auth=sasl, listen on 127.0.0.1, or set "
            "console.insecure=true")
    return chosen
