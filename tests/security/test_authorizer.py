"""Access rules: what they allow, and the index over them against a plain list."""

from types import SimpleNamespace

import pytest

from pylog.config import Settings
from pylog.security import authorizer
from pylog.security.authorizer import (
    ALL,
    ALLOW,
    ALTER,
    ALTER_CONFIGS,
    CREATE,
    DENY,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    LITERAL,
    PREFIXED,
    READ,
    TOPIC,
    WRITE,
    Rule,
    StandardAuthorizer,
)
from pylog.security.identities import user


def record(rule: Rule):
    return SimpleNamespace(
        resource_type=rule.resource_type, pattern_type=rule.pattern_type,
        resource_name=rule.resource_name, principal=rule.principal, host=rule.host,
        operation=rule.operation, permission_type=rule.permission)


def rule(name="t", operation=READ, permission=ALLOW, principal="User:a", host="*",
         pattern=LITERAL) -> Rule:
    return Rule(TOPIC, pattern, name, principal, host, operation, permission)


def made(*rules, **texts) -> StandardAuthorizer:
    found = StandardAuthorizer(Settings({name.replace("_", "."): text
                                         for name, text in texts.items()}))
    found.take({("AccessControlEntryRecord", (number,)): record(row)
                for number, row in enumerate(rules)})
    return found


def may(given: StandardAuthorizer, operation=READ, name="t", who="a", host="h") -> bool:
    return given.authorize(user(who), host, operation, TOPIC, name).allowed


def test_what_no_rule_allows_is_refused():
    assert not may(made())
    assert not may(made(rule("other")))
    assert not may(made(rule(principal="User:b")))
    assert not may(made(rule(operation=WRITE)))


@pytest.mark.parametrize("row", [
    rule(), rule("*"), rule("t", pattern=PREFIXED), rule("", pattern=PREFIXED),
    rule(principal="User:*"), rule(operation=ALL), rule(host="h")])
def test_each_kind_of_rule_allows(row):
    assert may(made(row))


@pytest.mark.parametrize("row", [
    rule(permission=DENY), rule("*", permission=DENY), rule("t", READ, DENY, pattern=PREFIXED),
    rule(operation=ALL, permission=DENY), rule(principal="User:*", permission=DENY)])
def test_a_rule_that_denies_wins(row):
    assert not may(made(rule(), rule("*"), row))


def test_other_addresses_are_not_meant():
    given = made(rule(host="10.0.0.1"))
    assert may(given, host="10.0.0.1") and not may(given, host="10.0.0.2")
    assert may(made(rule(), rule(host="10.0.0.1", permission=DENY)), host="10.0.0.2")
    assert given.knows_hosts and not made(rule()).knows_hosts


@pytest.mark.parametrize(("given", "implied"), [
    (READ, DESCRIBE), (WRITE, DESCRIBE), (ALTER, DESCRIBE), (authorizer.DELETE, DESCRIBE),
    (ALTER_CONFIGS, DESCRIBE_CONFIGS)])
def test_operations_imply_others_when_allowed_and_not_when_denied(given, implied):
    assert may(made(rule(operation=given)), implied)
    assert may(made(rule(operation=ALL), rule(operation=given, permission=DENY)), implied)


def test_create_implies_nothing():
    assert not may(made(rule(operation=CREATE)), DESCRIBE)


def test_super_users_may_everything():
    given = made(rule(permission=DENY), super_users="User:x; User:a")
    assert may(given) and not may(given, who="b")
    assert given.authorize_any(user("a"), "h", WRITE, TOPIC).allowed


def test_what_no_rule_names_may_be_open_to_all():
    given = made(rule("t", WRITE), allow_everyone_if_no_acl_found="true")
    assert may(given, name="other", who="b") and not may(given, READ, "t", "b")


def test_some_topic_is_enough_where_any_will_do():
    def some(*rules):
        return made(*rules).authorize_any(user("a"), "h", WRITE, TOPIC).allowed
    assert some(rule("x", WRITE)) and some(rule("x", ALL)) and some(rule("*", WRITE))
    assert not some() and not some(rule("x", READ))
    assert not some(rule("x", WRITE), rule("x", WRITE, DENY))
    assert not some(rule("xy", WRITE), rule("x", WRITE, DENY, pattern=PREFIXED))
    assert some(rule("y", WRITE), rule("x", WRITE, DENY, pattern=PREFIXED))
    assert not some(rule("*", WRITE), rule("*", WRITE, DENY))


def test_rules_come_and_go_as_a_plain_list_says(random_source):
    """Against the same decision made by reading all rules."""
    names, given, kept = ["", "a", "ab", "abc", "b", "*"], made(), {}
    for step in range(400):
        if kept and random_source.random() < 0.4:
            del kept[random_source.choice(list(kept))]
        else:
            kept["AccessControlEntryRecord", (step,)] = record(Rule(
                TOPIC, random_source.choice([LITERAL, PREFIXED]), random_source.choice(names),
                random_source.choice(["User:a", "User:*", "User:b"]),
                random_source.choice(["*", "h"]), random_source.choice([READ, WRITE, ALL]),
                random_source.choice([ALLOW, ALLOW, DENY])))
        given.take(dict(kept))
        for name in ("a", "abc", "b", "c"):
            for host in ("h", "i"):
                assert may(given, READ, name, "a", host) == _plainly(kept, name, host)
    given.take({})
    assert not given._literal and not given._prefixed and not any(given._lengths.values())
    assert not given.knows_hosts


def _plainly(kept, name: str, host: str) -> bool:
    rows = [authorizer.rule_of(row) for row in kept.values()]
    meant = [row for row in rows if row.principal in ("User:a", "User:*")
             and row.host in ("*", host) and row.operation in (READ, ALL)
             and (row.resource_name in (name, "*") if row.pattern_type == LITERAL
                  else name.startswith(row.resource_name))]
    return bool(meant) and all(row.permission == ALLOW for row in meant)
