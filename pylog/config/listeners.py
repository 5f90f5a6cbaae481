"""Listeners: the addresses that a broker binds, and the addresses that it advertises.

Owns: nothing.
Invariants: listener names are unique and upper case; two listeners share a port number only if it
  is 0 (any free port).
Source: KIP-103 (named listeners), KIP-684; Kafka's startup checks, as observed.
"""

import contextlib
import socket

from .errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
_LOOPBACK_IPV6 = bytes(15) + b"\1"
TLS_PROTOCOLS = ("SSL", "SASL_SSL")


def is_loopback(host: str) -> bool:
    """Return True if a host names this machine and reaches no other one."""
    with contextlib.suppress(OSError):
        return socket.inet_pton(socket.AF_INET, host)[0] == 127
    with contextlib.suppress(OSError):
        return socket.inet_pton(socket.AF_INET6, host.partition("%")[0]) == _LOOPBACK_IPV6
    return host == "localhost"


class Listener:
    """One address. `host` "" means every interface, `port` 0 any free port."""

    __slots__ = ("name", "host", "port", "protocol")

    def __init__(self, name: str, host: str, port: int, protocol: str):
        self.name, self.host, self.port, self.protocol = name, host, port, protocol

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def is_wildcard(self) -> bool:
        """Return True if the listener is bound to every interface, so `host` names no machine."""
        return self.host in ("", "0.0.0.0", "::")

    def __repr__(self):
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    def __eq__(self, other):
        return isinstance(other, Listener) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment]  # How Python spells "not hashable".


def parse_protocol_map(text: str, controller_names: tuple) -> dict[str, str]:
    """Return listener name -> security protocol. Controller listeners default to PLAINTEXT.

    Raises ConfigError if an entry is not NAME:PROTOCOL with a protocol of Kafka.
    """
    protocols = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = entry.rpartition(":")
        if not colon or protocol.strip().upper() not in PROTOCOLS:
            raise ConfigError(f"Invalid value {entry} for configuration "
                              f"listener.security.protocol.map: expected NAME:PROTOCOL with one of "
                              f"{', '.join(PROTOCOLS)}")
        protocols[name.strip().upper()] = protocol.strip().upper()
    for name in controller_names:
        protocols.setdefault(name.upper(), "PLAINTEXT")
    return protocols


def parse_overrides(text: str) -> dict[str, int]:
    """Return host -> maximum connections from max.connections.per.ip.overrides. Raises ConfigError.
    """
    limits = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, colon, count = entry.rpartition(":")
        if not host or not (count.isascii() and count.isdigit()):
            raise ConfigError(f"Invalid value {entry} for configuration "
                              "max.connections.per.ip.overrides: expected host:count")
        limits[host.strip().strip("[]")] = int(count)
    return limits


def parse(key: str, entries: tuple, protocols: dict[str, str]) -> tuple[Listener, ...]:
    """Return the listeners of setting `key`. Raises ConfigError for a bad address or a repeated
    name.
    """
    found = [_parse_listener(key, entry, protocols) for entry in entries]
    names = [listener.name for listener in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{key}: the listener name {name} appears twice")
    return tuple(found)


def check_ports(key: str, listeners: tuple) -> None:
    """Raise ConfigError if two listeners would bind the same port of an interface."""
    seen: dict[tuple[int, bool], Listener] = {}
    for listener in listeners:
        other = seen.setdefault((listener.port, ":" in listener.host), listener)
        if other is not listener and listener.port:
            raise ConfigError(f"{key}: {other!r} and {listener!r} share a port: give each "
                              f"listener its own port, or 0 for a free one")


def _parse_listener(key: str, entry: str, protocols: dict[str, str]) -> Listener:
    name, slashes, address = entry.partition("://")
    name = name.strip().upper()
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    digits = port.isascii() and port.isdigit()
    if not name or not slashes or not colon or not digits or any(c in host for c in "[]/ "):
        raise ConfigError(f"Invalid value {entry} for configuration {key}: "
                          "expected NAME://host:port, the host may be empty")
    if int(port) > 65535:
        raise ConfigError(f"Invalid value {entry} for configuration {key}: "
                          "expected a port from 0 to 65535")
    if name not in protocols:
        raise ConfigError(f"{key}: listener {name} is missing in listener.security.protocol.map: "
                          f"add {name}:PLAINTEXT to it")
    return Listener(name, host, int(port), protocols[name])
