"""Authentication and authorization of connections: combines the modules of pylog.security.

Owns: the identities of connections, the access checks, the logins in progress.
Invariants: after access rules or credentials change, no earlier grant remains in force; no state of
  a closed connection remains.
Source: csrc/net/auth_gate.c, for the requests that unauthenticated clients may send.
"""

from __future__ import annotations

import logging

from pylog._native.server.grants import FOLLOW, READ, WRITE
from pylog._native.server.reactor import SAME_SESSION
from pylog.api.security.sasl import AuthenticationApi
from pylog.config import ConfigError
from pylog.protocol import api
from pylog.security import authorizer, principals
from pylog.security.authorization import audit
from pylog.security.authorization.access import Access
from pylog.security.authorization.authorizer_guard import AuthorizerGuard
from pylog.security.sasl.sasl import Mechanisms
from pylog.security.tls import principal_mapping

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.server.grants import Grants
    from pylog._native.server.reactor import Closed, Connected, Miss, Verify
    from pylog.config import Settings
    from pylog.metadata.service import MetadataService
    from pylog.security.authorizer import Authorizer
    from pylog.server.audit_log_topic import AuditTopic
    from pylog.server.network import Network

log = logging.getLogger("pylog.guard")

_AS_NODE = api.FETCH, authorizer.CLUSTER_ACTION, authorizer.CLUSTER, authorizer.CLUSTER_NAME


class Guard:
    """enforcer: None without an authorizer. now_ms: the wall clock. topic: of the audit log."""

    def __init__(self, settings: Settings, metadata: MetadataService, grants: Grants,
                 network: Network, enforcer: Authorizer | None, now_ms: Callable[[], int],
                 topic: AuditTopic | None = None):
        self.identities = principals.Identities()
        self._settings, self._listener_name = settings, network.listener_name
        self._metadata = metadata
        self._mappings: dict[str, principal_mapping.Rules] = {}  # By the text of the rules.
        self._grants = grants
        self._reactors = network.reactors
        path = settings["audit.log.file"]
        self._audit_file = audit.AuditFile(path) if path else None
        self._audit_topic = topic
        outlets = [sink for sink in (self._audit_file, topic) if sink is not None]
        self.audit = audit.AuditLog(
            outlets, settings["audit.log.data.enable"], now_ms,
            "" if topic is None else topic.name) if outlets else None
        self.access = None if enforcer is None else Access(
            enforcer, self.identities, None if self.audit is None else self.audit.decided)
        mechanisms = Mechanisms(settings, lambda: metadata.image.security, now_ms,
                                network.reactors.now_ns)
        mechanisms.check()
        self.authentication = AuthenticationApi(
            mechanisms, self.identities, network.reactors, settings, network.listener_name, now_ms)

    def take(self, security: dict, changed: frozenset | None = None) -> None:
        """Apply an image's access rules, with the arguments of Authorizer.take, and revoke all
        grants if a decision may have changed.
        """
        if self.access is None or self.access.authorizer.take(security, changed) is False:
            return
        for connection, number in self.identities.set_by_host(
                self.access.authorizer.knows_hosts):
            self._reactors.set_principal(connection, number, SAME_SESSION)
        self._grants.void()

    def reauthorize(self) -> bool:
        """Call about once per second. Reloads rules that the authorizer failed to load, and revokes
        grants if its decisions can change without the metadata. Return True if repeated responses
        are also invalid.
        """
        if self.access is None:
            return False
        enforcer = self.access.authorizer
        was_behind = isinstance(enforcer, AuthorizerGuard) and enforcer.is_behind
        if was_behind:
            self.take(self._metadata.image.security)
        if not enforcer.from_image:
            self._grants.void()
        return was_behind or not enforcer.from_image

    @property
    def audit_dropped(self) -> int:
        """Return the number of lines dropped because the audit log was full."""
        return 0 if self.audit is None else self.audit.dropped

    def start(self) -> None:
        """Call on the event loop once topics are writable."""
        if self._audit_topic is not None:
            self._audit_topic.start()

    async def stop(self) -> None:
        """Call while topics are still writable."""
        if self._audit_topic is not None:
            await self._audit_topic.stop()

    def close(self) -> None:
        if self._audit_file is not None:
            self._audit_file.close()

    def connected(self, event: Connected) -> None:
        """Authenticate a connection of a listener without SASL by its client certificate."""
        principal = principals.ANONYMOUS
        if event.certificate:
            try:
                principal = principals.user(self._mapping(event.listener).name(event.certificate))
            except (principal_mapping.Unmapped, ConfigError) as error:
                log.warning("a client's certificate names no principal", extra={
                    "peer": event.peer_host, "certificate": event.certificate,
                    "reason": str(error)})
                self._reactors.close_connection(event.connection)
                return
        number = self.identities.bind_connection(event.connection, principal, event.peer_host)
        self._reactors.set_interest(event.connection)
        self._reactors.set_principal(event.connection, number)
        self._reactors.retry(event.connection)

    def _mapping(self, listener: int) -> principal_mapping.Rules:
        """Return the listener's mapping rules. Raises ConfigError."""
        text = self._settings.of_listener(self._listener_name(listener), principal_mapping.NAME)
        if text not in self._mappings:
            self._mappings[text] = principal_mapping.Rules(text)
        return self._mappings[text]

    def closed(self, event: Closed) -> None:
        # Drop all state of the connection.
        self.identities.leave(event.connection)
        self.authentication.forget(event.connection)

    def may_write_in(self, requested: Verify) -> bool:
        """Return True if the producer may use its transactional id (CVE-2018-17196)."""
        return self.access is None or self.access.decide(
            self.identities.principal(requested.principal),
            self.identities.host(requested.connection) or "", api.PRODUCE, authorizer.WRITE,
            authorizer.TRANSACTIONAL_ID, requested.transactional_id.decode("utf-8", "replace"))

    def may(self, miss: Miss, topic: str) -> bool | None:
        """Return True if the principal has the right that the request needs. Checks no other right,
        because each check is audited. Return None if the connection has closed or changed its
        identity.
        """
        if self.access is None:
            return True
        host = self.identities.host(miss.connection)
        if host is None or not self.identities.is_current(miss.connection, miss.principal):
            return None
        requested = {
            READ: (api.FETCH, authorizer.READ, authorizer.TOPIC, topic),
            WRITE: (api.PRODUCE, authorizer.WRITE, authorizer.TOPIC, topic),
            FOLLOW: _AS_NODE}[miss.right]
        return self.access.decide(self.identities.principal(miss.principal), host, *requested)
