"""Who the connections belong to: principals, and the numbers under which reactors know them.

Owns: the numbers in use.
Invariants: (1) a number stands for one principal, and with `by_host` for one address too, as long
  as a connection that has it or had it is open: its requests may be under way; (2) 0 is the
  anonymous principal of listeners that ask nobody; (3) a number that was given back is not given
  out again before all others were.
Source: Kafka's KafkaPrincipal.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Iterator

USER = "User"
NUMBER_MAX = 2**32 - 1

_Principal = namedtuple("_Principal", ("kind", "name", "from_token"))


class Principal(_Principal):
    """kind: `User`, or another one that access rules name. from_token: a delegation token's."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def user(name: str, from_token: bool = False) -> Principal:
    return Principal(USER, name, from_token)


def parse(text: str) -> Principal | None:
    """The principal that `kind:name` names, None for any other text."""
    kind, colon, name = text.partition(":")
    return Principal(kind, name, False) if kind and colon and name else None


ANONYMOUS = user("ANONYMOUS")
# Whose connection has ended: what is left of its requests may do nothing.
GONE = Principal("", "", False)


class _Identity:
    __slots__ = ("connections", "key", "number", "principal")

    def __init__(self, number: int, principal: Principal, key: tuple):
        self.number, self.principal, self.key = number, principal, key
        self.connections = 0     # And requests that it is lent to.


class Identities:
    """The principals of the open connections. Every one that enters is to leave."""

    def __init__(self) -> None:
        self.by_host = False
        self._last = 0
        self._by_key: dict[tuple, _Identity] = {}
        self._by_number: dict[int, _Identity] = {}
        # What a connection is now, its address, and what it was before set_by_host().
        self._connections: dict[int, tuple[_Identity, str, _Identity | None]] = {}

    def principal(self, number: int) -> Principal:
        if number == 0:
            return ANONYMOUS
        found = self._by_number.get(number)
        return GONE if found is None else found.principal

    def host(self, connection: int) -> str | None:
        """The address of a connection that entered."""
        found = self._connections.get(connection)
        return None if found is None else found[1]

    def is_current(self, connection: int, number: int) -> bool:
        """Whether a connection's requests carry the number that it has now."""
        found = self._connections.get(connection)
        return found is not None and found[0].number == number

    def enter(self, connection: int, principal: Principal, host: str) -> int:
        """The number of a connection's principal from now on; it may have had another."""
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

    def lend(self, principal: Principal, host: str) -> int:
        """A number for a request of a principal who is connected to another node. It is to be
        given back."""
        return self._held(principal, host).number

    def give_back(self, number: int) -> None:
        """What was lent."""
        self._release(self._by_number[number])

    def _release(self, identity: _Identity) -> None:
        assert identity.connections > 0, identity.number
        identity.connections -= 1
        if not identity.connections:
            del self._by_key[identity.key], self._by_number[identity.number]

    def _free_number(self) -> int:
        # Keeps (3).
        while True:
            self._last = self._last % NUMBER_MAX + 1
            if self._last not in self._by_number:
                return self._last

    def set_by_host(self, by_host: bool) -> Iterator[tuple[int, int]]:
        """Whether addresses make a difference. Yields (connection, its new number)."""
        if by_host == self.by_host:
            return
        self.by_host = by_host
        for connection, (identity, host, before) in list(self._connections.items()):
            # Keeps (1). Of two numbers, the one before is the one that it gets again.
            now = self._held(identity.principal, host)
            assert before is None or before is now, connection
            if before is not None:
                self._release(before)
            self._connections[connection] = now, host, identity
            yield connection, now.number
