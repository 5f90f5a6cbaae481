"""Principals of connections, and the identity numbers by which reactors refer to them.

Owns: the numbers in use.
Invariants: a number identifies one principal, and with `by_host` also one address, while a
  connection that uses or used it is open, because requests may be in flight; 0 is the anonymous
  principal of listeners without authentication; a released number is reused only after all others.
Source: Kafka's KafkaPrincipal.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Iterator

USER = "User"
NUMBER_MAX = 2**32 - 1

_Principal = namedtuple("_Principal", ("kind", "name", "from_token"))


class Principal(_Principal):
    """kind: `User`, or another principal type of access rules. from_token: authenticated with a
    delegation token.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def user(name: str, from_token: bool = False) -> Principal:
    return Principal(USER, name, from_token)


def parse(text: str) -> Principal | None:
    """Parse `kind:name`. Return None for any other text."""
    kind, colon, name = text.partition(":")
    return Principal(kind, name, False) if kind and colon and name else None


ANONYMOUS = user("ANONYMOUS")
# The connection has closed. Its remaining requests are denied.
GONE = Principal("", "", False)


class _Identity:
    __slots__ = ("connections", "key", "number", "principal")

    def __init__(self, number: int, principal: Principal, key: tuple):
        self.number, self.principal, self.key = number, principal, key
        self.connections = 0  # Plus the number of forwarded requests that use it.


class Identities:
    """The principals of open connections. Every enter() needs a leave()."""

    def __init__(self) -> None:
        self.by_host = False
        self._last = 0
        self._by_key: dict[tuple, _Identity] = {}
        self._by_number: dict[int, _Identity] = {}
        # Connection -> current identity, address, and the identity before set_by_host().
        self._connections: dict[int, tuple[_Identity, str, _Identity | None]] = {}

    def principal(self, number: int) -> Principal:
        if number == 0:
            return ANONYMOUS
        found = self._by_number.get(number)
        return GONE if found is None else found.principal

    def host(self, connection: int) -> str | None:
        """Return the client address of a connection, or None if it is not registered."""
        found = self._connections.get(connection)
        return None if found is None else found[1]

    def is_current(self, connection: int, number: int) -> bool:
        """Return True if `number` is the connection's current number."""
        found = self._connections.get(connection)
        return found is not None and found[0].number == number

    def bind_connection(self, connection: int, principal: Principal, host: str) -> int:
        """Register the connection's principal, which may replace another, and return its number."""
        identity = self._held(principal, host)
        found = self._connections.get(connection)
        if found is not None and found[0] is identity:
            self._release(identity)
            return identity.number
        self.leave(connection)
        self._connections[connection] = identity, host, None
        return identity.number

    def _held(self, principal: Principal, host: str) -> _Identity:
        key = (principal, host if self.by_host else None)
        identity = self._by_key.get(key)
        if identity is None:
            identity = _Identity(self._free_number(), principal, key)
            self._by_key[key] = self._by_number[identity.number] = identity
        identity.connections += 1
        return identity

    def leave(self, connection: int) -> None:
        found = self._connections.pop(connection, None)
        if found is not None:
            identity, _, before = found
            self._release(identity)
            if before is not None:
                self._release(before)

    def acquire(self, principal: Principal, host: str) -> int:
        """Return a number for a forwarded request, whose client is connected to another node.
        Release it with release().
        """
        return self._held(principal, host).number

    def release(self, number: int) -> None:
        """Release a number from lend()."""
        self._release(self._by_number[number])

    def _release(self, identity: _Identity) -> None:
        assert identity.connections > 0, identity.number
        identity.connections -= 1
        if not identity.connections:
            del self._by_key[identity.key], self._by_number[identity.number]

    def _free_number(self) -> int:
        # Reuse a released number only after all others.
        while True:
            self._last = self._last % NUMBER_MAX + 1
            if self._last not in self._by_number:
                return self._last

    def set_by_host(self, by_host: bool) -> Iterator[tuple[int, int]]:
        """Set if addresses are part of an identity. Yield (connection, new number) for each change.
        """
        if by_host == self.by_host:
            return
        self.by_host = by_host
        for connection, (identity, host, before) in list(self._connections.items()):
            # Requests in flight still carry the old number, so hold both. If by_host changes back,
            # the connection gets its previous number again.
            now = self._held(identity.principal, host)
            assert before is None or before is now, connection
            if before is not None:
                self._release(before)
            self._connections[connection] = now, host, identity
            yield connection, now.number
