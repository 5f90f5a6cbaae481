"""Who may do what: access rules by Kafka's, and the interface for rules of another kind.

Owns: the index over the rules in force.
Called by: security.access; metadata.acls for the words.
Invariants: (1) a rule that denies wins over any that allows; (2) a look-up costs a step for each
  length of prefix that some rule has, however many rules there are; (3) what no rule names is for
  super users, or with allow.everyone.if.no.acl.found for everybody.
Source: KIP-11, KIP-290 (prefixes), KIP-679 (by resource type); Kafka's StandardAuthorizer.
"""

from __future__ import annotations

import abc
from collections import namedtuple

from pylog.security.identities import USER, Principal

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Kafka's numbers.
UNKNOWN, ANY, ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, \
    DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE, CREATE_TOKENS, DESCRIBE_TOKENS, \
    TWO_PHASE_COMMIT = range(16)
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER_RESOURCE = range(2, 8)
MATCH, LITERAL, PREFIXED = range(2, 5)
DENY, ALLOW = 2, 3
CLUSTER_NAME = "kafka-cluster"
EVERYTHING = EVERYONE = ANYWHERE = "*"

# Operations that can be asked for on resources of a kind, in the order of their bits (KIP-430).
OPERATIONS = {
    TOPIC: (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER: (CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS,
              IDEMPOTENT_WRITE),
}
# An allowed operation allows these too.
_IMPLIED = {
    DESCRIBE: frozenset((DESCRIBE, READ, WRITE, DELETE, ALTER, ALL)),
    DESCRIBE_CONFIGS: frozenset((DESCRIBE_CONFIGS, ALTER_CONFIGS, ALL)),
}

Rule = namedtuple("Rule", ("resource_type", "pattern_type", "resource_name", "principal", "host",
                           "operation", "permission"))
Rule.__doc__ = "One access rule, in Kafka's numbers and words; principal: `User:name`."

Decision = namedtuple("Decision", ("allowed", "rule", "reason"))
Decision.__doc__ = "rule: the one that decided, or None; reason: what decided without one."


class Authorizer(abc.ABC):
    """What another authorizer implements; `authorizer.class.name` names it as module:class, which
    is called with the broker's Settings.

    knows_hosts: addresses make a difference. from_image: a decision stays the same while the
    metadata does. Both as for the worst until a subclass says otherwise.
    """

    knows_hosts = True
    from_image = False

    @abc.abstractmethod
    def authorize(self, principal: Principal, host: str, operation: int, resource_type: int,
                  resource_name: str) -> Decision:
        """On the event loop: never waits."""

    @abc.abstractmethod
    def authorize_any(self, principal: Principal, host: str, operation: int,
                      resource_type: int) -> Decision:
        """Whether there may be any resource of the type that the operation is allowed on."""

    @abc.abstractmethod
    def take(self, security: dict) -> None:
        """The access rules and credentials of the metadata, as metadata.image keeps them."""


class _Resource:
    """The rules on one pattern, by principal."""

    __slots__ = ("rules",)

    def __init__(self) -> None:
        self.rules: dict[str, list[Rule]] = {}


class StandardAuthorizer(Authorizer):
    """Kafka's rules over the AccessControlEntryRecords of the metadata."""

    from_image = True

    def __init__(self, settings):
        named = settings.value("super.users") or ""
        self._super_users = frozenset(
            part.strip() for part in named.split(";") if part.strip())
        self._open = (settings.value("allow.everyone.if.no.acl.found") or "").strip().lower() \
            == "true"
        self._security: dict = {}
        self._rules: dict[object, Rule] = {}
        # (resource type, name or prefix) -> rules
        self._literal: dict[tuple[int, str], _Resource] = {}
        self._prefixed: dict[tuple[int, str], _Resource] = {}
        # resource type -> {length of a prefix: how many rules have it}
        self._lengths: dict[int, dict[int, int]] = {}
        self._with_host = 0

    @property
    def knows_hosts(self) -> bool:  # type: ignore[override]
        return self._with_host > 0

    # ---- rules ----------------------------------------------------------------------------------

    def take(self, security: dict) -> None:
        before, self._security = self._security, security
        for key in before.keys() - security.keys():
            rule = self._rules.pop(key, None)
            if rule is not None:
                self._remove(rule)
        for key in security.keys() - before.keys():
            if key[0] == "AccessControlEntryRecord":
                rule = self._rules[key] = rule_of(security[key])
                self._add(rule)

    def _add(self, rule: Rule) -> None:
        self._at(rule).setdefault((rule.resource_type, rule.resource_name), _Resource()) \
            .rules.setdefault(rule.principal, []).append(rule)
        self._with_host += rule.host != ANYWHERE
        if rule.pattern_type == PREFIXED:
            lengths = self._lengths.setdefault(rule.resource_type, {})
            size = len(rule.resource_name)
            lengths[size] = lengths.get(size, 0) + 1

    def _remove(self, rule: Rule) -> None:
        at, key = self._at(rule), (rule.resource_type, rule.resource_name)
        resource = at[key]
        resource.rules[rule.principal].remove(rule)
        if not resource.rules[rule.principal]:
            del resource.rules[rule.principal]
        if not resource.rules:
            del at[key]
        self._with_host -= rule.host != ANYWHERE
        if rule.pattern_type == PREFIXED:
            lengths = self._lengths[rule.resource_type]
            size = len(rule.resource_name)
            lengths[size] -= 1
            if not lengths[size]:
                del lengths[size]

    def _at(self, rule: Rule) -> dict:
        return self._prefixed if rule.pattern_type == PREFIXED else self._literal

    # ---- decisions ------------------------------------------------------------------------------

    def authorize(self, principal: Principal, host: str, operation: int, resource_type: int,
                  resource_name: str) -> Decision:
        name = str(principal)
        if name in self._super_users:
            return Decision(True, None, "a super user")
        allowed, any_rule = None, False
        for resource in self._matching(resource_type, resource_name):
            any_rule = True
            for who in (name, f"{USER}:{EVERYONE}"):
                for rule in resource.rules.get(who, ()):
                    if rule.host not in (ANYWHERE, host):
                        continue
                    if rule.permission == DENY and rule.operation in (operation, ALL):
                        # Keeps (1).
                        return Decision(False, rule, "")
                    if rule.permission == ALLOW and allowed is None \
                            and _allows(rule.operation, operation):
                        allowed = rule
        if allowed is not None:
            return Decision(True, allowed, "")
        # Keeps (3).
        if not any_rule and self._open:
            return Decision(True, None, "allow.everyone.if.no.acl.found")
        return Decision(False, None, "no rule allows it")

    def _matching(self, resource_type: int, name: str) -> Iterator[_Resource]:
        for wanted in (name, EVERYTHING):
            found = self._literal.get((resource_type, wanted))
            if found is not None:
                yield found
            if name == EVERYTHING:
                break
        # Keeps (2).
        for size in self._lengths.get(resource_type, ()):
            if size <= len(name):
                found = self._prefixed.get((resource_type, name[:size]))
                if found is not None:
                    yield found

    def authorize_any(self, principal: Principal, host: str, operation: int,
                      resource_type: int) -> Decision:
        name = str(principal)
        if name in self._super_users:
            return Decision(True, None, "a super user")
        allowed, denied_names, denied_prefixes = [], set(), set()
        for rule in self._of_type(resource_type, (name, f"{USER}:{EVERYONE}")):
            if rule.host not in (ANYWHERE, host) or rule.operation not in (operation, ALL):
                continue
            if rule.permission == ALLOW:
                allowed.append(rule)
            elif rule.pattern_type == PREFIXED:
                denied_prefixes.add(rule.resource_name)
            elif rule.resource_name == EVERYTHING:
                return Decision(False, rule, "")
            else:
                denied_names.add(rule.resource_name)
        for rule in allowed:
            wanted = rule.resource_name
            everything = rule.pattern_type == LITERAL and wanted == EVERYTHING
            if everything or not (rule.pattern_type == LITERAL and wanted in denied_names) \
                    and not any(wanted[:size] in denied_prefixes
                                for size in range(len(wanted) + 1)):
                return Decision(True, rule, "")
        if not allowed and self._open and not denied_names and not denied_prefixes \
                and not any(key[0] == resource_type for key in (*self._literal, *self._prefixed)):
            return Decision(True, None, "allow.everyone.if.no.acl.found")
        return Decision(False, None, "no rule allows it")

    def _of_type(self, resource_type: int, principals: Iterable[str]) -> Iterator[Rule]:
        for at in (self._literal, self._prefixed):
            for (kind, _), resource in at.items():
                if kind == resource_type:
                    for who in principals:
                        yield from resource.rules.get(who, ())


def _allows(given: int, wanted: int) -> bool:
    return given in _IMPLIED[wanted] if wanted in _IMPLIED else given in (wanted, ALL)


def rule_of(record) -> Rule:
    """The rule of an AccessControlEntryRecord."""
    return Rule(record.resource_type, record.pattern_type, record.resource_name,
                record.principal, record.host, record.operation, record.permission_type)
