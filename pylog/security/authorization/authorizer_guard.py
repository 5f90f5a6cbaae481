"""Wraps a third-party authorizer, so that its failures never allow a request or stop the broker.

Owns: the wrapped authorizer.
Invariants: an exception or an invalid decision denies the request; after the authorizer failed to
  load the rules, every request is denied until it loads them; each kind of failure is logged at
  most once per QUIET_NS, with the number of suppressed lines.
Source: none; Kafka returns UNKNOWN_SERVER_ERROR if an authorizer throws.
"""

from __future__ import annotations

import logging

from pylog.security.authorizer import Authorizer, Decision, Rule

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.security.principals import Principal

log = logging.getLogger("pylog.authorizer")

# A slow decision blocks the event loop, and therefore all clients.
SLOW_NS = 50_000_000
QUIET_NS = 60_000_000_000


class AuthorizerGuard(Authorizer):
    """held: the authorizer. name: its class. now_ns: a monotonic clock."""

    def __init__(self, held: Authorizer, name: str, now_ns: Callable[[], int]):
        self._held, self._name, self._now_ns = held, name, now_ns
        self.is_behind = False  # The authorizer failed to load the rules.
        self._logged: dict[str, tuple[int, int]] = {}  # Message -> (time, number suppressed since).

    @property
    def knows_hosts(self) -> bool:  # type: ignore[override]
        return self._held.knows_hosts

    @property
    def from_image(self) -> bool:  # type: ignore[override]
        # After a failure, the next decision may differ.
        return self._held.from_image and not self._logged

    def authorize(self, principal: Principal, host: str, operation: int, resource_type: int,
                  resource_name: str) -> Decision:
        return self._decided(
            self._held.authorize, principal, host, operation, resource_type, resource_name)

    def authorize_any(self, principal: Principal, host: str, operation: int,
                      resource_type: int) -> Decision:
        return self._decided(self._held.authorize_any, principal, host, operation, resource_type)

    def _decided(self, decide: Callable[..., Any], *requested: object) -> Decision:
        if self.is_behind:
            # The rules that it decides by are outdated.
            return Decision(False, None, "the authorizer did not accept the access rules")
        began_ns = self._now_ns()
        try:
            decision = decide(*requested)
        except Exception as error:
            # Third-party code can raise anything.
            self._tell("the authorizer failed", error=error)
            return Decision(False, None, f"the authorizer failed: {type(error).__name__}")
        elapsed_ns = self._now_ns() - began_ns
        if elapsed_ns >= SLOW_NS:
            self._tell("the authorizer is slow and blocks all requests",
                       ms=elapsed_ns // 1_000_000)
        if not _is_decision(decision):
            self._tell("the authorizer did not return a Decision", answer=type(decision).__name__)
            return Decision(False, None, "the authorizer did not return a Decision")
        return decision

    def take(self, security: dict, changed: frozenset | None = None) -> bool | None:
        was_behind = self.is_behind
        try:
            differs = self._held.take(security, None if was_behind else changed)
        except Exception as error:
            self.is_behind = True
            self._tell("the authorizer did not accept the access rules; every request is denied",
                       error=error)
            return None
        self.is_behind = False
        return None if was_behind else differs

    def _tell(self, message: str, error: Exception | None = None, **more: object) -> None:
        """Log a failure, rate-limited per message."""
        now_ns = self._now_ns()
        when_ns, left_out = self._logged.get(message, (now_ns - QUIET_NS, 0))
        if now_ns - when_ns < QUIET_NS:
            self._logged[message] = when_ns, left_out + 1
            return
        self._logged[message] = now_ns, 0
        log.error(message, exc_info=error, extra={
            "authorizer": self._name, **more, "left_out": left_out})


def _is_decision(response: object) -> bool:
    return isinstance(response, Decision) and isinstance(response.allowed, bool) \
        and isinstance(response.reason, str) \
        and (response.rule is None or isinstance(response.rule, Rule))
