"""Who the connections belong to and what they may do: the parts of security, put together.

Owns: the identities of connections, the access, the logins under way.
Invariants: (1) when rules or credentials changed, no right from before is in force; (2) a
  connection that ends is forgotten.
Source: csrc/net/guard.c, for what strangers may send.
"""

from __future__ import annotations

import logging

from pylog._native.grants import FOLLOW, READ, WRITE
from pylog._native.reactor import SAME_SESSION
from pylog.api.security.sasl import AuthenticationApi
from pylog.config import ConfigError
from pylog.protocol import api
from pylog.security import audit, authorizer, identities
from pylog.security.access import Access
from pylog.security.certificate_names import NAME as MAPPING_RULES
from pylog.security.certificate_names import Rules, Unmapped
from pylog.security.contained import Contained
from pylog.security.sasl import Mechanisms

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.grants import Grants
    from pylog._native.reactor import Closed, Connected, Miss, Verify
    from pylog.config import Settings
    from pylog.metadata.service import MetadataService
    from pylog.security.authorizer import Authorizer
    from pylog.server.audit_log_topic import AuditTopic
    from pylog.server.network import Network

log = logging.getLogger("pylog.guard")

_AS_NODE = api.FETCH, authorizer.CLUSTER_ACTION, authorizer.CLUSTER, authorizer.CLUSTER_NAME


class Guard:
    """`access`: None without an authorizer. now_ms: the wall clock. topic: of the audit log."""

    def __init__(self, settings: Settings, metadata: MetadataService, grants: Grants,
                 network: Network, enforcer: Authorizer | None, now_ms: Callable[[], int],
                 topic: AuditTopic | None = None):
        self.identities = identities.Identities()
        self._settings, self._listener_name = settings, network.listener_name
        self._metadata = metadata
        self._mappings: dict[str, Rules] = {}    # By their text.
        self._grants = grants
        self._reactors = network.reactors
        path = settings["audit.log.file"]
        self._audit_file = audit.AuditFile(path) if path else None
        self._audit_topic = topic
        outlets = [outlet for outlet in (self._audit_file, topic) if outlet is not None]
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
        """Puts an image's access rules into force; arguments as Authorizer.take. Keeps (1)."""
        if self.access is None or self.access.authorizer.take(security, changed) is False:
            return
        for connection, number in self.identities.set_by_host(
                self.access.authorizer.knows_hosts):
            self._reactors.set_principal(connection, number, SAME_SESSION)
        self._grants.void()

    def ask_again(self) -> bool:
        """To be called often: what decides by more than the metadata may have changed its mind,
        and what could not take the rules may do so now. Whether answers of before are void."""
        if self.access is None:
            return False
        enforcer = self.access.authorizer
        was_behind = isinstance(enforcer, Contained) and enforcer.is_behind
        if was_behind:
            self.take(self._metadata.image.security)
        if not enforcer.from_image:
            self._grants.void()
        return was_behind or not enforcer.from_image

    @property
    def audit_dropped(self) -> int:
        """Lines that the audit log had no room for."""
        return 0 if self.audit is None else self.audit.dropped

    def start(self) -> None:
        """On the event loop, when topics can be written."""
        if self._audit_topic is not None:
            self._audit_topic.start()

    async def stop(self) -> None:
        """As long as topics can be written."""
        if self._audit_topic is not None:
            await self._audit_topic.stop()

    def close(self) -> None:
        if self._audit_file is not None:
            self._audit_file.close()

    def connected(self, event: Connected) -> None:
        """A connection of a listener without SASL: its certificate says who it is."""
        principal = identities.ANONYMOUS
        if event.certificate:
            try:
                principal = identities.user(self._mapping(event.listener).name(event.certificate))
            except (Unmapped, ConfigError) as error:
                log.warning("a client's certificate names no principal", extra={
                    "peer": event.peer_host, "certificate": event.certificate,
                    "reason": str(error)})
                self._reactors.close_connection(event.connection)
                return
        number = self.identities.enter(event.connection, principal, event.peer_host)
        self._reactors.set_interest(event.connection)
        self._reactors.set_principal(event.connection, number)
        self._reactors.retry(event.connection)

    def _mapping(self, listener: int) -> Rules:
        """Raises ConfigError."""
        text = self._settings.of_listener(self._listener_name(listener), MAPPING_RULES)
        if text not in self._mappings:
            self._mappings[text] = Rules(text)
        return self._mappings[text]

    def closed(self, event: Closed) -> None:
        # Keeps (2).
        self.identities.leave(event.connection)
        self.authentication.forget(event.connection)

    def may_write_in(self, asked: Verify) -> bool:
        """Whether who sends it may write under its transactional id (CVE-2018-17196)."""
        return self.access is None or self.access.decide(
            self.identities.principal(asked.principal),
            self.identities.host(asked.connection) or "", api.PRODUCE, authorizer.WRITE,
            authorizer.TRANSACTIONAL_ID, asked.transactional_id.decode("utf-8", "replace"))

    def may(self, miss: Miss, topic: str) -> bool | None:
        """Whether a miss's principal has the right that is asked for, and no other: an audit tells
        of what was tried. None: its number is not its connection's any more."""
        if self.access is None:
            return True
        host = self.identities.host(miss.connection)
        if host is None or not self.identities.is_current(miss.connection, miss.principal):
            return None
        asked = {
            READ: (api.FETCH, authorizer.READ, authorizer.TOPIC, topic),
            WRITE: (api.PRODUCE, authorizer.WRITE, authorizer.TOPIC, topic),
            FOLLOW: _AS_NODE}[miss.right]
        return self.access.decide(self.identities.principal(miss.principal), host, *asked)
