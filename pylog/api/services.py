"""The parts of the broker that the handlers of its APIs use.

Owns: nothing.
Invariants: none of them changes while the broker runs.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False  # Types that only annotations use would cost startup time.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pylog._native.server.heartbeat_cache import Repeats
    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Message
    from pylog.api.security.delegation_tokens import Asker
    from pylog.api.security.sasl import AuthenticationApi
    from pylog.config import Settings
    from pylog.config.client_quotas import ClientQuotas
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.coordinator.runtime.local_append import Markers
    from pylog.coordinator.transactions.service import TransactionCoordinator
    from pylog.coordinator.transactions.verification import Verification
    from pylog.log.manager import LogManager
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.service import MetadataService
    from pylog.security.authorization.access import Access
    from pylog.share.service import Sharing


def _no_sasl(context: RequestContext) -> None:
    return None


class ApiServices(NamedTuple):
    """metadata: has the current image. listener_name: see api.cluster.cluster. registered: see
    api.cluster.configs. sharing: returns the share groups, created on first use. watch: requests a
    notification when a connection closes. asker, forward: see api.security.delegation_tokens.
    access: None allows everything. authentication: see api.security.acls_and_users. repeats: see
    api.groups.consumer.
    """

    settings: Settings
    metadata: MetadataService
    controller: ActiveController
    logs: LogManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verification: Verification
    markers: Markers
    client_quotas: ClientQuotas
    listener_name: Callable[[int], str]
    registered: Callable[[], Awaitable[None]]
    node_id: int
    now_ms: Callable[[], int]
    sharing: Callable[[], Sharing]
    watch: Callable[[int], object]
    asker: Callable[[RequestContext], Asker]
    forward: Callable[[RequestContext, Message], Awaitable[Message]] | None = None
    access: Access | None = None
    repeats: Repeats | None = None
    authentication: Callable[[RequestContext], AuthenticationApi | None] = _no_sasl

    def is_login_in_progress(self, context: RequestContext) -> bool:
        """Return True after a client's SaslHandshake until it is authenticated."""
        authentication = self.authentication(context)
        return authentication is not None and authentication.is_login_in_progress(context)
