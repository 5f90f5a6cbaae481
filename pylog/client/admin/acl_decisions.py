"""Which ACL decides whether a principal may do something.

Owns: nothing.
Invariants: the decision is that of the standard authorizer, from the given rules only.
Source: pylog.security.authorizer, which decides like Kafka's StandardAuthorizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pylog.client.admin.security import (
    OPERATIONS, PATTERN_TYPES, PERMISSIONS, RESOURCE_TYPES, number_of, word_of,
)
from pylog.client.admin.types import AclBinding
from pylog.protocol import messages
from pylog.security import authorizer, principals

CLUSTER_NAME = authorizer.CLUSTER_NAME
# Resource type -> operations that are checked on it.
POSSIBLE = {
    word_of(RESOURCE_TYPES, kind): tuple(word_of(OPERATIONS, number) for number in numbers)
    for kind, numbers in authorizer.OPERATIONS.items()}


class AclDecision(NamedTuple):
    """rule: the ACL that decides; None if none does. reason: why, in words, if there is no rule."""

    allowed: bool
    rule: AclBinding | None
    reason: str


class Unreported:
    """Settings without values: brokers do not report super.users and
    allow.everyone.if.no.acl.found, so a denial can be wrong for super users.
    """

    def value(self, name: str) -> None:
        return None


def judge(settings: Any, rules: Iterable[AclBinding]) -> authorizer.StandardAuthorizer:
    """Return an authorizer with these rules. settings: the broker's, or Unreported()."""
    found = authorizer.StandardAuthorizer(settings)
    found.take({("AccessControlEntryRecord", number): messages.AccessControlEntryRecord(
        resource_type=number_of(RESOURCE_TYPES, rule.resource_type),
        resource_name=rule.resource_name,
        pattern_type=number_of(PATTERN_TYPES, rule.pattern_type), principal=rule.principal,
        host=rule.host, operation=number_of(OPERATIONS, rule.operation),
        permission_type=number_of(PERMISSIONS, rule.permission))
        for number, rule in enumerate(rules)})
    return found


def permits(by: authorizer.StandardAuthorizer, principal: str, host: str, operation: str,
            kind: str, name: str) -> bool:
    """Return True if the rules of judge() allow the operation. Arguments: as for decide()."""
    return bool(_authorized(by, principal, host, operation, kind, name).allowed)


def _authorized(by: authorizer.StandardAuthorizer, principal: str, host: str, operation: str,
                kind: str, name: str) -> Any:
    who = principals.parse(principal)
    if who is None:
        raise ValueError(f"{principal!r}: expected User:NAME")
    return by.authorize(who, host, number_of(OPERATIONS, operation),
                        number_of(RESOURCE_TYPES, kind), name)


def decide(settings: Any, rules: Iterable[AclBinding], principal: str, host: str, operation: str,
           kind: str, name: str) -> AclDecision:
    """Return the decision. settings: the broker's, or Unreported(). principal: `User:name`; raises
    ValueError for another form.
    """
    found = _authorized(judge(settings, rules), principal, host, operation, kind, name)
    rule = found.rule
    return AclDecision(found.allowed, None if rule is None else AclBinding(
        word_of(RESOURCE_TYPES, rule.resource_type), rule.resource_name,
        word_of(PATTERN_TYPES, rule.pattern_type), rule.principal, rule.host,
        word_of(OPERATIONS, rule.operation), word_of(PERMISSIONS, rule.permission)), found.reason)
