"""Which ACL decides whether a principal may do something.

Owns: nothing.
Invariants: the decision is that of the standard authorizer, from the ACLs that the viewer may see;
  brokers do not report super users, so a denial can be wrong for them.
Source: pylog.security.authorizer, which decides like Kafka's StandardAuthorizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pylog.client.admin.security import (
    OPERATIONS, PATTERN_TYPES, PERMISSIONS, RESOURCE_TYPES, number_of, word_of,
)
from pylog.client.admin.types import AclBinding
from pylog.protocol import messages
from pylog.security import authorizer, principals

CLUSTER_NAME = authorizer.CLUSTER_NAME
ALL = "ALL"
# Resource type -> operations that are checked on it.
POSSIBLE = {
    word_of(RESOURCE_TYPES, kind): tuple(word_of(OPERATIONS, number) for number in numbers)
    for kind, numbers in authorizer.OPERATIONS.items()}


class Answer(NamedTuple):
    """rule: the deciding ACL; None if no ACL matches, which denies all but super users."""

    allowed: bool
    rule: AclBinding | None


class _NoSettings:
    """Settings without super users: brokers do not report them."""

    def value(self, name: str) -> None:
        return None


def decide(rules: Iterable[AclBinding], principal: str, host: str, operation: str, kind: str,
           name: str) -> Answer:
    """Return the decision. principal: `User:name`. Raises ValueError for another form."""
    who = principals.parse(principal)
    if who is None:
        raise ValueError(principal)
    judge = authorizer.StandardAuthorizer(_NoSettings())
    judge.take({("AccessControlEntryRecord", number): messages.AccessControlEntryRecord(
        resource_type=number_of(RESOURCE_TYPES, rule.resource_type),
        resource_name=rule.resource_name,
        pattern_type=number_of(PATTERN_TYPES, rule.pattern_type), principal=rule.principal,
        host=rule.host, operation=number_of(OPERATIONS, rule.operation),
        permission_type=number_of(PERMISSIONS, rule.permission))
        for number, rule in enumerate(rules)})
    found = judge.authorize(who, host, number_of(OPERATIONS, operation),
                            number_of(RESOURCE_TYPES, kind), name)
    if found.rule is None:
        return Answer(found.allowed, None)
    rule = found.rule
    return Answer(found.allowed, AclBinding(
        word_of(RESOURCE_TYPES, rule.resource_type), rule.resource_name,
        word_of(PATTERN_TYPES, rule.pattern_type), rule.principal, rule.host,
        word_of(OPERATIONS, rule.operation), word_of(PERMISSIONS, rule.permission)))
