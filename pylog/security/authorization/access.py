"""Checks if the sender of a request may perform its operations.

Owns: nothing.
Invariants: a request is denied unless the authorizer allows it.
Source: Kafka's AuthHelper.
"""

from __future__ import annotations

from pylog.config.errors import ConfigError
from pylog.security.authorizer import (
    CLUSTER, CLUSTER_ACTION, CLUSTER_NAME, OPERATIONS, Authorizer, Decision, StandardAuthorizer,
)
from pylog.security.authorization.authorizer_guard import AuthorizerGuard
from pylog.security.principals import GONE

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.server.reactor import RequestContext
    from pylog.config import Settings
    from pylog.security.principals import Identities, Principal

    Audit = Callable[[Principal, str, int, int, int, str, Decision], None]

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class Access:
    """Checks requests with the authorizer. audit: called with each decision; None disables
    auditing.
    """

    def __init__(self, authorizer: Authorizer, identities: Identities,
                 audit: Audit | None = None):
        self.authorizer = authorizer
        self.identities = identities
        self._audit = audit
        self.is_audited = audit is not None

    def may(self, context: RequestContext, operation: int, resource_type: int,
            name: str) -> bool:
        return self.decide(self.identities.principal(context.principal), context.peer_host,
                           context.api_key, operation, resource_type, name)

    def may_besides(self, context: RequestContext, operation: int, resource_type: int,
                    name: str) -> bool:
        """Return True if the operation is allowed, for a check whose refusal does not fail the
        request: another check follows, or the response omits a resource that the request did not
        name. Only allowed operations are audited (Kafka's logIfDenied).
        """
        return self.decide(self.identities.principal(context.principal), context.peer_host,
                           context.api_key, operation, resource_type, name, refusal_ends=False)

    def seen_by(self, context: RequestContext, operation: int,
                resource_type: int) -> Callable[[str], bool]:
        """Return a function like may_besides() for checks after the request was handled. It uses
        the principal and address of the request even if the connection has changed or closed since.
        """
        principal, host = self.identities.principal(context.principal), context.peer_host
        api_key = context.api_key
        return lambda name: self.decide(
            principal, host, api_key, operation, resource_type, name, refusal_ends=False)

    def is_node(self, context: RequestContext) -> bool:
        """Return True if the request may come from a node of the cluster."""
        return self.may(context, CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)

    def decide(self, principal: Principal, host: str, api_key: int, operation: int,
               resource_type: int, name: str, refusal_ends: bool = True) -> bool:
        """api_key: of the request that needs the decision."""
        if principal is GONE:
            return False
        decision = self.authorizer.authorize(principal, host, operation, resource_type, name)
        if self._audit is not None and (decision.allowed or refusal_ends):
            self._audit(principal, host, api_key, operation, resource_type, name, decision)
        return decision.allowed

    def may_somewhere(self, context: RequestContext, operation: int, resource_type: int) -> bool:
        """Return True if the operation is allowed on at least one possible resource of the type."""
        principal = self.identities.principal(context.principal)
        return principal is not GONE and self.authorizer.authorize_any(
            principal, context.peer_host, operation, resource_type).allowed

    def operations(self, context: RequestContext, resource_type: int, name: str) -> int:
        """Return the allowed operations on a resource as a bit field (KIP-430)."""
        principal = self.identities.principal(context.principal)
        if principal is GONE:
            return 0
        return sum(1 << operation for operation in OPERATIONS[resource_type]
                   if self.authorizer.authorize(
                       principal, context.peer_host, operation, resource_type, name).allowed)


def authorizer_of(settings: Settings, now_ns: Callable[[], int]) -> Authorizer | None:
    """Return the configured authorizer, or None if none is configured. now_ns: a monotonic clock.
    Raises ConfigError.
    """
    name = settings["authorizer.class.name"].strip()
    if not name:
        return None
    if name == STANDARD:
        return StandardAuthorizer(settings)
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"authorizer.class.name={name}: expected {STANDARD}, or module:class "
                          "of a pylog.security.authorizer.Authorizer")
    try:
        return AuthorizerGuard(_own(module, attribute, settings), name, now_ns)
    except Exception as error:
        # Third-party code can raise anything. The broker must not start without its authorizer.
        what = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        raise ConfigError(f"authorizer.class.name={name}: {what}{error}") from error


def _own(module: str, attribute: str, settings: Settings) -> Authorizer:
    import importlib

    found = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Authorizer)):
        raise ConfigError("no pylog.security.authorizer.Authorizer")
    if found.__abstractmethods__:
        raise ConfigError(f"it lacks {', '.join(sorted(found.__abstractmethods__))}")
    made: Callable[[Settings], Authorizer] = found
    return made(settings)
