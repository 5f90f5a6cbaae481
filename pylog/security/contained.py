"""An authorizer of somebody's own: what goes wrong in it opens nothing and ends nothing.

Owns: the authorizer that it holds.
Invariants: (1) whatever it raises, and whatever it answers that is no Decision, is a refusal;
  (2) when it could not take the rules, nothing is allowed until it has; (3) a kind of trouble has a
  line in the log at most every QUIET_NS, which says how many were left out.
Source: none; Kafka answers UNKNOWN_SERVER_ERROR when an authorizer throws.
"""

from __future__ import annotations

import logging

from pylog.security.authorizer import Authorizer, Decision, Rule

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.security.identities import Principal

log = logging.getLogger("pylog.authorizer")

# Every client of the broker waits as long.
SLOW_NS = 50_000_000
QUIET_NS = 60_000_000_000


class Contained(Authorizer):
    """held: an authorizer; name: of its class. now_ns: a clock that only goes forward."""

    def __init__(self, held: Authorizer, name: str, now_ns: Callable[[], int]):
        self._held, self._name, self._now_ns = held, name, now_ns
        self.is_behind = False                           # It could not take the rules.
        self._told: dict[str, tuple[int, int]] = {}      # Message -> (when, how many since).

    @property
    def knows_hosts(self) -> bool:  # type: ignore[override]
        return self._held.knows_hosts

    @property
    def from_image(self) -> bool:  # type: ignore[override]
        # One that has failed may say another thing the next time.
        return self._held.from_image and not self._told

    def authorize(self, principal: Principal, host: str, operation: int, resource_type: int,
                  resource_name: str) -> Decision:
        return self._decided(
            self._held.authorize, principal, host, operation, resource_type, resource_name)

    def authorize_any(self, principal: Principal, host: str, operation: int,
                      resource_type: int) -> Decision:
        return self._decided(self._held.authorize_any, principal, host, operation, resource_type)

    def _decided(self, decide: Callable[..., Any], *asked: object) -> Decision:
        if self.is_behind:
            # Keeps (2).
            return Decision(False, None, "the authorizer could not take the access rules")
        began_ns = self._now_ns()
        try:
            decision = decide(*asked)
        except Exception as error:
            # Keeps (1).
            self._tell("the authorizer failed", error=error)
            return Decision(False, None, f"the authorizer failed: {type(error).__name__}")
        taken_ns = self._now_ns() - began_ns
        if taken_ns >= SLOW_NS:
            self._tell("the authorizer is slow, and nobody is served meanwhile",
                       ms=taken_ns // 1_000_000)
        if not _is_decision(decision):
            self._tell("the authorizer's answer is no Decision", answer=type(decision).__name__)
            return Decision(False, None, "the authorizer's answer is no Decision")
        return decision

    def take(self, security: dict, changed: frozenset | None = None) -> bool | None:
        was_behind = self.is_behind
        try:
            differs = self._held.take(security, None if was_behind else changed)
        except Exception as error:
            self.is_behind = True
            self._tell("the authorizer could not take the access rules, and allows nothing",
                       error=error)
            return None
        self.is_behind = False
        return None if was_behind else differs

    def _tell(self, message: str, error: Exception | None = None, **more: object) -> None:
        """Keeps (3)."""
        now_ns = self._now_ns()
        when_ns, left_out = self._told.get(message, (now_ns - QUIET_NS, 0))
        if now_ns - when_ns < QUIET_NS:
            self._told[message] = when_ns, left_out + 1
            return
        self._told[message] = now_ns, 0
        log.error(message, exc_info=error, extra={
            "authorizer": self._name, **more, "left_out": left_out})


def _is_decision(answer: object) -> bool:
    return isinstance(answer, Decision) and isinstance(answer.allowed, bool) \
        and isinstance(answer.reason, str) \
        and (answer.rule is None or isinstance(answer.rule, Rule))
