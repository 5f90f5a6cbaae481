"""Who the connections belong to and what they may do: the parts of security, put together.

Owns: the identities of connections, the access, the logins under way.
Called by: broker (makes it when security is asked for), server.dispatch (connections, misses).
Invariants: (1) when rules or credentials changed, no right from before is in force; (2) a
  connection that ends is forgotten.
Source: csrc/net/guard.c, for what strangers may send.
"""

from __future__ import annotations

from pylog._native.grants import READ, WRITE
from pylog.api.authentication import AuthenticationApi
from pylog.security import audit, authorizer, identities
from pylog.security.access import Access
from pylog.security.sasl import Mechanisms

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.grants import Grants
    from pylog._native.reactor import Closed, Connected, Miss
    from pylog.config import Settings
    from pylog.metadata.service import MetadataService
    from pylog.security.authorizer import Authorizer
    from pylog.server.network import Network


class Guard:
    """`access`: None without an authorizer. now_ms: the wall clock."""

    def __init__(self, settings: Settings, metadata: MetadataService, grants: Grants,
                 network: Network, enforcer: Authorizer | None, now_ms: Callable[[], int]):
        self.identities = identities.Identities()
        self._grants = grants
        self._reactors = network.reactors
        self.audit = audit.of(settings, now_ms)
        self.access = None if enforcer is None else Access(
            enforcer, self.identities, None if self.audit is None else self.audit.decided)
        mechanisms = Mechanisms(settings, lambda: metadata.image.security)
        mechanisms.check()
        self.authentication = AuthenticationApi(
            mechanisms, self.identities, network.reactors, settings, network.listener_name, now_ms)

    def take(self, security: dict) -> None:
        """Puts an image's access rules into force. Keeps (1)."""
        if self.access is None:
            return
        self.access.authorizer.take(security)
        for connection, number in self.identities.set_by_host(
                self.access.authorizer.knows_hosts):
            self._reactors.set_principal(connection, number)
        self._grants.void()

    def close(self) -> None:
        if self.audit is not None:
            self.audit.close()

    def connected(self, event: Connected) -> None:
        """A connection of a listener that authenticates nobody."""
        number = self.identities.enter(
            event.connection, identities.ANONYMOUS, event.peer_host)
        self._reactors.set_interest(event.connection)
        self._reactors.set_principal(event.connection, number)
        self._reactors.retry(event.connection)

    def closed(self, event: Closed) -> None:
        # Keeps (2).
        self.identities.leave(event.connection)
        self.authentication.forget(event.connection)

    def rights(self, miss: Miss, topic: str) -> int | None:
        """READ and WRITE as far as a miss's principal has them; None: its number is not its
        connection's any more."""
        if self.access is None:
            return READ | WRITE
        host = self.identities.host(miss.connection)
        if host is None or not self.identities.is_current(miss.connection, miss.principal):
            return None
        principal = self.identities.principal(miss.principal)
        return (READ if self.access.decide(
            principal, host, authorizer.READ, authorizer.TOPIC, topic) else 0) \
            | (WRITE if self.access.decide(
                principal, host, authorizer.WRITE, authorizer.TOPIC, topic) else 0)
