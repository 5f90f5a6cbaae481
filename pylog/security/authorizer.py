"""The standard authorizer with Kafka's access rules, and the interface for other authorizers.

Owns: the index of active rules, and the names of Kafka's codes.
Invariants: a deny rule overrides every allow rule; the cost of a decision depends on the number of
  different prefix lengths, of names and of subnets, among the rules of the principal and of
  `User:*`, not on the number of rules; a resource without rules is available to super users only,
  or to every principal if allow.everyone.if.no.acl.found is set.
Source: KIP-11, KIP-290 (prefixes), KIP-1276 (subnets), KIP-679 (by resource type); Kafka's
  StandardAuthorizer.
"""

from __future__ import annotations

import abc
import functools
import logging
from collections import Counter, namedtuple

from pylog.security.principals import USER, Principal

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

log = logging.getLogger("pylog.authorizer")

MAPPED_BITS = 96  # The prefix of IPv4 addresses in IPv6, ::ffff:0:0/96.
HOSTS_LOGGED_MAX = 100  # Of the rules that are loaded together.
# Codes of Kafka's protocol.
UNKNOWN, ANY, ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, \
    DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE, CREATE_TOKENS, DESCRIBE_TOKENS, \
    TWO_PHASE_COMMIT = range(16)
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER_RESOURCE = range(2, 8)
MATCH, LITERAL, PREFIXED = range(2, 5)
DENY, ALLOW = 2, 3
OPERATION_NAMES = (
    "Unknown", "Any", "All", "Read", "Write", "Create", "Delete", "Alter", "Describe",
    "ClusterAction", "DescribeConfigs", "AlterConfigs", "IdempotentWrite", "CreateTokens",
    "DescribeTokens", "TwoPhaseCommit")
RESOURCE_NAMES = ("Unknown", "Any", "Topic", "Group", "Cluster", "TransactionalId",
                  "DelegationToken", "User")
CLUSTER_NAME = "kafka-cluster"
EVERYTHING = EVERYONE = ANYWHERE = "*"
_EVERYBODY = f"{USER}:{EVERYONE}"
ACCESS_RULE = "AccessControlEntryRecord"  # First part of the keys in metadata.image's `security`.

# Valid operations per resource type, in the order of their bits (KIP-430).
OPERATIONS = {
    TOPIC: (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER: (CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS,
              IDEMPOTENT_WRITE),
    TRANSACTIONAL_ID: (WRITE, DESCRIBE, TWO_PHASE_COMMIT),
    USER_RESOURCE: (CREATE_TOKENS, DESCRIBE_TOKENS),
}
# Each key is also allowed by a rule for one of these operations.
_IMPLIED = {
    DESCRIBE: frozenset((DESCRIBE, READ, WRITE, DELETE, ALTER, ALL)),
    DESCRIBE_CONFIGS: frozenset((DESCRIBE_CONFIGS, ALTER_CONFIGS, ALL)),
}

Rule = namedtuple("Rule", ("resource_type", "pattern_type", "resource_name", "principal", "host",
                           "operation", "permission"))
Rule.__doc__ = "One ACL, with Kafka's codes and names; principal: `User:name`."

Decision = namedtuple("Decision", ("allowed", "rule", "reason"))
Decision.__doc__ = "rule: the deciding ACL, or None; reason: of a decision without one."


class Authorizer(abc.ABC):
    """Interface of an authorizer. `authorizer.class.name` selects an implementation as
    module:class; the class is called with the broker's Settings.

    knows_hosts: set if decisions depend on client addresses. from_image: set if a decision can only
    change with the metadata; otherwise decisions for Produce and Fetch are refreshed every second.
    The defaults are the safe choice for both. An exception denies the request (security.contained).
    """

    knows_hosts = True
    from_image = False

    @abc.abstractmethod
    def authorize(self, principal: Principal, host: str, operation: int, resource_type: int,
                  resource_name: str) -> Decision:
        """Decide on one resource. Runs on the event loop, so it must not block."""

    @abc.abstractmethod
    def authorize_any(self, principal: Principal, host: str, operation: int,
                      resource_type: int) -> Decision:
        """Decide if the operation is allowed on at least one possible resource of the type."""

    @abc.abstractmethod
    def take(self, security: dict, changed: frozenset | None) -> bool | None:
        """Load the access rules and credentials from metadata.image's `security`. changed: the keys
        that were added, removed or updated; None: unknown. Return False if all decisions stay the
        same.
        """


class _Patterns:
    """The rules for one principal and one resource type."""

    __slots__ = ("lengths", "named", "subnets")

    def __init__(self) -> None:
        # (pattern type, name or prefix) -> {host: rules}
        self.named: dict[tuple[int, str], dict[Any, list[Rule]]] = {}
        # prefix length -> number of prefixes
        self.lengths: dict[int, int] = {}
        # (IP version, prefix length) of the subnets -> number of rules
        self.subnets: Counter[tuple[int, int]] = Counter()

    def add(self, rule: Rule) -> None:
        key = (rule.pattern_type, rule.resource_name)
        if key not in self.named:
            self.named[key] = {}
            if rule.pattern_type == PREFIXED:
                size = len(rule.resource_name)
                self.lengths[size] = self.lengths.get(size, 0) + 1
        host = _host_of(rule)
        self.named[key].setdefault(host, []).append(rule)
        if not isinstance(host, str):
            self.subnets[host.version, host.prefixlen] += 1

    def remove(self, rule: Rule) -> None:
        key = (rule.pattern_type, rule.resource_name)
        hosts, host = self.named[key], _host_of(rule)
        hosts[host].remove(rule)
        if not isinstance(host, str):
            subnets = host.version, host.prefixlen
            self.subnets[subnets] -= 1
            if not self.subnets[subnets]:
                del self.subnets[subnets]
        if not hosts[host]:
            del hosts[host]
        if not hosts:
            del self.named[key]
            if rule.pattern_type == PREFIXED:
                size = len(rule.resource_name)
                self.lengths[size] -= 1
                if not self.lengths[size]:
                    del self.lengths[size]

    def on(self, name: str, host: str) -> Iterator[Rule]:
        """Yield the rules that match the resource name and host: one lookup per prefix length."""
        found = [self.named.get((LITERAL, name))]
        if name != EVERYTHING:
            found.append(self.named.get((LITERAL, EVERYTHING)))
        found += [self.named.get((PREFIXED, name[:size])) for size in self.lengths
                  if size <= len(name)]
        matching = self._matching(host)
        for hosts in found:
            if hosts is not None:
                for key in matching:
                    yield from hosts.get(key, ())

    def all(self, host: str) -> Iterator[Rule]:
        matching = self._matching(host)
        for hosts in self.named.values():
            for key in matching:
                yield from hosts.get(key, ())

    def _matching(self, host: str) -> list:
        """Return the hosts of rules that match a client's address: one subnet per prefix length."""
        if host == ANYWHERE:
            return [ANYWHERE]
        if not self.subnets:
            return [ANYWHERE, host]
        return [ANYWHERE, host, *_subnets_of(host, tuple(self.subnets))]


class StandardAuthorizer(Authorizer):
    """Kafka's access rules, from the AccessControlEntryRecords in the metadata."""

    from_image = True

    def __init__(self, settings):
        named = settings.value("super.users") or ""
        self._super_users = frozenset(
            part.strip() for part in named.split(";") if part.strip())
        self._open = (settings.value("allow.everyone.if.no.acl.found") or "").strip().lower() \
            == "true"
        self._rules: dict[object, Rule] = {}
        self._by_principal: dict[tuple[int, str], _Patterns] = {}  # (resource type, principal)
        # Resource type -> the patterns of all rules, without duplicates. Empty unless _open.
        self._by_type: dict[int, _Patterns] = {}
        self._pattern_uses: Counter[Rule] = Counter()
        self._host_rules = 0

    @property
    def knows_hosts(self) -> bool:  # type: ignore[override]
        return self._host_rules > 0

    # ---- rules ----------------------------------------------------------------------------------

    def take(self, security: dict, changed: frozenset | None = None) -> bool:
        keys = changed if changed is not None else {*self._rules, *security}
        differs, unmatched = False, []
        for key in keys:
            if key[0] != ACCESS_RULE:
                continue
            differs = True
            rule = self._rules.pop(key, None)
            if rule is not None:
                self._remove(rule)
            if key in security:
                new = self._rules[key] = rule_of(security[key])
                self._add(new)
                if new != rule and "/" in new.host and subnet_of(new.host) is None:
                    unmatched.append(new)
        _warn_of_hosts(unmatched)
        return differs

    def _add(self, rule: Rule) -> None:
        self._by_principal.setdefault((rule.resource_type, rule.principal), _Patterns()).add(rule)
        if self._open:
            pattern = _pattern_of(rule)
            self._pattern_uses[pattern] += 1
            if self._pattern_uses[pattern] == 1:
                self._by_type.setdefault(rule.resource_type, _Patterns()).add(pattern)
        self._host_rules += rule.host != ANYWHERE

    def _remove(self, rule: Rule) -> None:
        held = self._by_principal[rule.resource_type, rule.principal]
        held.remove(rule)
        if not held.named:
            del self._by_principal[rule.resource_type, rule.principal]
        self._host_rules -= rule.host != ANYWHERE
        if self._open:
            pattern = _pattern_of(rule)
            self._pattern_uses[pattern] -= 1
            if not self._pattern_uses[pattern]:
                del self._pattern_uses[pattern]
                self._by_type[rule.resource_type].remove(pattern)
                if not self._by_type[rule.resource_type].named:
                    del self._by_type[rule.resource_type]

    # ---- decisions ------------------------------------------------------------------------------

    def authorize(self, principal: Principal, host: str, operation: int, resource_type: int,
                  resource_name: str) -> Decision:
        name = str(principal)
        if name in self._super_users:
            return Decision(True, None, "a super user")
        allowed = None
        for held in self._of(resource_type, name):
            for rule in held.on(resource_name, host):
                if rule.permission == DENY and rule.operation in (operation, ALL):
                    # A deny rule overrides every allow rule.
                    return Decision(False, rule, "")
                if rule.permission == ALLOW and allowed is None \
                        and _allows(rule.operation, operation):
                    allowed = rule
        if allowed is not None:
            return Decision(True, allowed, "")
        # No rule matches the resource.
        if self._open and not self._is_named(resource_type, resource_name):
            return Decision(True, None, "allow.everyone.if.no.acl.found")
        return Decision(False, None, "no rule allows it")

    def _of(self, resource_type: int, principal: str) -> list[_Patterns]:
        """Return the rules for the principal and for `User:*`."""
        found = (self._by_principal.get((resource_type, name)) for name in (principal, _EVERYBODY))
        return [held for held in found if held is not None]

    def _is_named(self, resource_type: int, name: str) -> bool:
        named = self._by_type.get(resource_type)
        return named is not None and next(named.on(name, ANYWHERE), None) is not None

    def _is_all_named(self, resource_type: int) -> bool:
        """Return True if a rule for "*" exists, so that no resource is without rules."""
        named = self._by_type.get(resource_type)
        return named is not None and (LITERAL, EVERYTHING) in named.named

    def authorize_any(self, principal: Principal, host: str, operation: int,
                      resource_type: int) -> Decision:
        name = str(principal)
        if name in self._super_users:
            return Decision(True, None, "a super user")
        allowed, denied_names, denied_prefixes = [], set(), set()
        for rule in (rule for held in self._of(resource_type, name) for rule in held.all(host)):
            if rule.operation not in (operation, ALL):
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
        if self._open and not self._is_all_named(resource_type):
            return Decision(True, None, "allow.everyone.if.no.acl.found")
        return Decision(False, None, "no rule allows it")


def _host_of(rule: Rule) -> Any:
    """Return the host of a rule as clients are compared with it: an address, or a subnet."""
    return (subnet_of(rule.host) or rule.host) if "/" in rule.host else _address(rule.host)


def subnet_of(host: str) -> Any:
    """Return the subnet of a host such as 10.0.0.0/8 (KIP-1276), None if it is not one.

    The address may be any of the subnet. Returns an IPv4Network or IPv6Network.
    """
    import ipaddress

    address, _, size = host.partition("/")
    if not (size.isascii() and size.isdigit()) or "%" in address:
        return None
    try:
        found = ipaddress.ip_network((address, int(size)), strict=False)
    except ValueError:
        return None
    if found.version == 6 and found.prefixlen >= MAPPED_BITS \
            and found.network_address.ipv4_mapped is not None:
        # Connections show such clients with their IPv4 address.
        return ipaddress.ip_network(
            (str(found.network_address.ipv4_mapped), found.prefixlen - MAPPED_BITS))
    return found


@functools.lru_cache(maxsize=4096)
def _subnets_of(host: str, sizes: tuple[tuple[int, int], ...]) -> list:
    """Return the subnets with these IP versions and prefix lengths that a client is in."""
    import ipaddress

    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return []
    return [ipaddress.ip_network((address, size), strict=False)
            for version, size in sizes if version == address.version]


def _address(host: str) -> str:
    """Convert a rule's host to the form that connections use. Kafka's rules contain uncompressed
    IPv6 addresses, as Java prints them.
    """
    if ":" not in host:
        return host
    # Imported here because few rules contain an IPv6 address.
    import ipaddress

    try:
        found = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    return str(found.ipv4_mapped or found)


def _allows(given: int, wanted: int) -> bool:
    return given in _IMPLIED[wanted] if wanted in _IMPLIED else given in (wanted, ALL)


def _pattern_of(rule: Rule) -> Rule:
    """Return only the pattern of a rule, equal for all rules with the same pattern."""
    return Rule(rule.resource_type, rule.pattern_type, rule.resource_name, "", ANYWHERE, ALL,
                ALLOW)


def _warn_of_hosts(rules: list[Rule]) -> None:
    """Log the rules whose host is no subnet. CreateAcls rejects them, but the metadata may contain
    older ones.
    """
    for number, rule in enumerate(rules):
        if number == HOSTS_LOGGED_MAX:
            log.warning("more access rules have no effect, because their hosts are not subnets; "
                        "list all rules with `pylog acl list`",
                        extra={"count": len(rules) - number})
            return
        log.warning("an access rule has no effect, because its host is not a subnet. Add a rule "
                    "with a subnet such as 10.0.0.0/8 with `pylog acl add --host`, and remove this "
                    "one with `pylog acl remove`", extra={"rule": shown(rule)})


def shown(rule: Rule) -> str:
    """Return the rule as one line of text."""
    pattern = {LITERAL: "literal", PREFIXED: "prefixed"}.get(
        rule.pattern_type, str(rule.pattern_type))
    return (f"{'Allow' if rule.permission == ALLOW else 'Deny'} {rule.principal} "
            f"{_name_in(OPERATION_NAMES, rule.operation)} from {rule.host} on {pattern} "
            f"{_name_in(RESOURCE_NAMES, rule.resource_type)} {rule.resource_name}")


def _name_in(names: tuple[str, ...], code: int) -> str:
    # A later version may have stored a code that has no name here.
    return names[code] if 0 <= code < len(names) else str(code)


def rule_of(record) -> Rule:
    """Return the Rule for an AccessControlEntryRecord."""
    return Rule(record.resource_type, record.pattern_type, record.resource_name,
                record.principal, record.host, record.operation, record.permission_type)
