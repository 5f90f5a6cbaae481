"""Decisions on ACLs: CreateAcls and DeleteAcls to records, and the ACLs that match a filter.

Owns: nothing; no clock, no disk.
Invariants: an ACL is stored once, even if it is created repeatedly; each ACL or filter of a request
  is decided independently; an ACL that several filters match is removed once and is in each
  filter's result.
Source: KIP-140, KIP-290, KIP-1276; error codes, their order and their texts as Kafka 4.4's.
"""

from collections import namedtuple

from pylog.metadata.image.feature_levels import METADATA_VERSION
from pylog.metadata.image.image import Image
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode
from pylog.security import authorizer, principals
from pylog.security.authorizer import Rule

RULES_PER_FILTER_MAX = 10_000  # Kafka's limit; a filter that matches more is rejected.
NAME_CHARACTERS_MAX = 32_767
SUBNETS = 32  # the first metadata.version with subnets as hosts (4.4-IV1)
RULES_PER_STEP = 16

Created = namedtuple("Created", ("error", "message"), defaults=(ErrorCode.NONE, None))
Created.__doc__ = "The result for one ACL of a request."
Deleted = namedtuple("Deleted", ("rules", "error", "message"), defaults=(ErrorCode.NONE, None))
Deleted.__doc__ = "The result for one filter: the deleted ACLs."

Filter = namedtuple("Filter", ("resource_type", "resource_name", "pattern_type", "principal",
                               "host", "operation", "permission"))
Filter.__doc__ = "A filter of DescribeAcls and DeleteAcls; None and ANY match everything."


def create(image: Image, rules, random):
    """Create ACLs, in steps (eventloop.slices). rules: [Rule]. Returns (records, [Created])."""
    added: set[Rule] = set()
    records, results = [], []
    for rule in rules:
        yield
        try:
            _check(rule, image.features.get(METADATA_VERSION, 0))
        except Refusal as refusal:
            results.append(Created(refusal.error, refusal.message))
            continue
        results.append(Created())
        if rule not in image.rules and rule not in added:
            # Store each ACL once, even within one request.
            added.add(rule)
            records.append(messages.AccessControlEntryRecord(
                id=random.randbytes(16), resource_type=rule.resource_type,
                resource_name=rule.resource_name, pattern_type=rule.pattern_type,
                principal=rule.principal, host=rule.host, operation=rule.operation,
                permission_type=rule.permission))
    return records, results


def delete(image: Image, filters):
    """Delete the ACLs that match, in steps (eventloop.slices). filters: [Filter]. Returns (records,
    [Deleted]).
    """
    gone: dict[Rule, None] = {}
    results = []
    for wanted in filters:
        try:
            check_filter(wanted)
            found = yield from _meant(image, wanted)
            if len(found) > RULES_PER_FILTER_MAX:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Cannot remove more than "
                              f"{RULES_PER_FILTER_MAX} acls in a single delete operation.")
        except Refusal as refusal:
            results.append(Deleted([], refusal.error, refusal.message))
            continue
        gone.update(dict.fromkeys(found))
        results.append(Deleted(found))
    # One removal per ACL, even if several filters match it.
    return [messages.RemoveAccessControlEntryRecord(id=id_)
            for rule in gone for id_ in image.rules[rule]], results


def found(image: Image, wanted: Filter):
    """Return the ACLs that match a filter, sorted by resource, in steps (eventloop.slices). Raises
    Refusal.
    """
    check_filter(wanted)
    rules = yield from _meant(image, wanted)
    return sorted(rules)


def _meant(image: Image, wanted: Filter):
    """Return the matching [Rule], in steps. A filter without wildcards is a dictionary lookup."""
    yield
    exact = _exactly(wanted)
    if exact is not None:
        return [exact] if exact in image.rules else []
    rules = []
    for number, words in enumerate(image.rules):
        if number % RULES_PER_STEP == RULES_PER_STEP - 1:
            yield
        rule = Rule._make(words)
        if matches(wanted, rule):
            rules.append(rule)
    return rules


def _exactly(wanted: Filter) -> Rule | None:
    """Return the only rule that a filter can match, or None if it can match several."""
    if wanted.pattern_type not in (authorizer.LITERAL, authorizer.PREFIXED) \
            or None in (wanted.resource_name, wanted.principal, wanted.host) \
            or authorizer.ANY in (wanted.resource_type, wanted.operation, wanted.permission):
        return None
    return Rule(wanted.resource_type, wanted.pattern_type, wanted.resource_name, wanted.principal,
                wanted.host, wanted.operation, wanted.permission)


def check_filter(wanted: Filter) -> None:
    """Raise Refusal if the filter has enum values of a later version."""
    unknown = authorizer.UNKNOWN
    if unknown in (wanted.resource_type, wanted.pattern_type, wanted.operation,
                   wanted.permission) or wanted.resource_type > authorizer.USER_RESOURCE \
            or wanted.pattern_type > authorizer.PREFIXED \
            or wanted.operation > authorizer.TWO_PHASE_COMMIT \
            or wanted.permission > authorizer.ALLOW:
        raise Refusal(ErrorCode.INVALID_REQUEST,
                      "The filter uses a feature that this version does not support")


def matches(wanted: Filter, rule: Rule) -> bool:
    return (wanted.resource_type in (authorizer.ANY, rule.resource_type)
            and wanted.principal in (None, rule.principal)
            and wanted.host in (None, rule.host)
            and wanted.operation in (authorizer.ANY, rule.operation)
            and wanted.permission in (authorizer.ANY, rule.permission)
            and _matches_name(wanted, rule))


def _matches_name(wanted: Filter, rule: Rule) -> bool:
    name, pattern = wanted.resource_name, wanted.pattern_type
    if pattern not in (authorizer.ANY, authorizer.MATCH, rule.pattern_type):
        return False
    if name is None:
        return True
    if pattern != authorizer.MATCH:
        return name == rule.resource_name
    if rule.pattern_type == authorizer.LITERAL:
        return rule.resource_name in (name, authorizer.EVERYTHING)
    return name.startswith(rule.resource_name)


def _check(rule: Rule, metadata_version: int) -> None:
    refused = None
    if not authorizer.TOPIC <= rule.resource_type <= authorizer.USER_RESOURCE:
        refused = "Invalid resourceType"
    elif rule.pattern_type not in (authorizer.LITERAL, authorizer.PREFIXED):
        refused = "Invalid patternType"
    elif not authorizer.ALL <= rule.operation <= authorizer.TWO_PHASE_COMMIT:
        refused = "Invalid operation"
    elif rule.permission not in (authorizer.DENY, authorizer.ALLOW):
        refused = "Invalid permissionType"
    elif not rule.resource_name or len(rule.resource_name) > NAME_CHARACTERS_MAX:
        refused = "Resource name should not be empty"
    elif rule.resource_type == authorizer.CLUSTER \
            and rule.resource_name not in (authorizer.CLUSTER_NAME, authorizer.EVERYTHING):
        refused = "The only valid name for the CLUSTER resource is kafka-cluster"
    elif principals.parse(rule.principal) is None:
        refused = f"Could not parse principal from `{rule.principal}` (no colon is present " \
                  "separating the principal type from the principal name)"
    elif not rule.host:
        refused = "Host pattern cannot be null or empty"
    elif "/" in rule.host and authorizer.subnet_of(rule.host) is None:
        refused = f"Host `{rule.host}` is not a subnet: expected an address, a slash and a " \
                  "prefix length, such as 10.0.0.0/8 or 2001:db8::/32"
    if refused is not None:
        raise Refusal(ErrorCode.INVALID_REQUEST, refused)
    if "/" in rule.host and metadata_version < SUBNETS:
        # A broker of an older version would not apply the rule.
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION,
                      f"Subnets as hosts need metadata.version {SUBNETS}; this cluster has "
                      f"{metadata_version}. Raise it with `kafka-features`")
