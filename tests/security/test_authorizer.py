"""ACLs: permitted operations, and the index compared with a plain list."""

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
from pylog.security.principals import user
from tests.fixtures.steps import steps_in


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


def test_operation_without_an_acl_is_denied():
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


def test_acl_does_not_match_other_addresses():
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


def test_resource_without_acls_may_be_open_to_all():
    given = made(rule("t", WRITE), allow_everyone_if_no_acl_found="true")
    assert may(given, name="other", who="b") and not may(given, READ, "t", "b")


def test_access_to_any_topic_is_sufficient_for_any_topic_checks():
    def some(*rules):
        return made(*rules).authorize_any(user("a"), "h", WRITE, TOPIC).allowed
    assert some(rule("x", WRITE)) and some(rule("x", ALL)) and some(rule("*", WRITE))
    assert not some() and not some(rule("x", READ))
    assert not some(rule("x", WRITE), rule("x", WRITE, DENY))
    assert not some(rule("xy", WRITE), rule("x", WRITE, DENY, pattern=PREFIXED))
    assert some(rule("y", WRITE), rule("x", WRITE, DENY, pattern=PREFIXED))
    assert not some(rule("*", WRITE), rule("*", WRITE, DENY))


@pytest.mark.parametrize(("written", "host"), [
    ("2001:db8:0:0:0:0:0:1", "2001:db8::1"), ("2001:DB8::1", "2001:db8::1"),
    ("0:0:0:0:0:0:0:1", "::1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("no:address", "no:address")])
def test_acl_matches_every_notation_of_an_address(written, host):
    given = made(rule(), rule(host=written, permission=DENY))
    assert not may(given, host=host) and may(given, host="2001:db8::2")
    given.take({})
    assert not given._by_principal and not given.knows_hosts


def test_random_acl_changes_match_a_plain_list(random_source):
    """Compare with the same decision made by checking all ACLs."""
    names, given, kept = ["", "a", "ab", "abc", "b", "*"], made(), {}
    for step in range(400):
        if kept and random_source.random() < 0.4:
            key = random_source.choice(list(kept))
            del kept[key]
        else:
            key = ("AccessControlEntryRecord", (step,))
            kept[key] = record(Rule(
                TOPIC, random_source.choice([LITERAL, PREFIXED]), random_source.choice(names),
                random_source.choice(["User:a", "User:*", "User:b"]),
                random_source.choice(["*", "h"]), random_source.choice([READ, WRITE, ALL]),
                random_source.choice([ALLOW, ALLOW, DENY])))
        # Mostly by changed ACLs, sometimes by all.
        given.take(dict(kept), frozenset([key]) if step % 7 else None)
        for name in ("a", "abc", "b", "c"):
            for host in ("h", "i"):
                assert may(given, READ, name, "a", host) == _plainly(kept, name, host)
    given.take({})
    assert not given._by_principal and not given._rules and not given.knows_hosts


def _plainly(kept, name: str, host: str) -> bool:
    rows = [authorizer.rule_of(row) for row in kept.values()]
    meant = [row for row in rows if row.principal in ("User:a", "User:*")
             and row.host in ("*", host) and row.operation in (READ, ALL)
             and (row.resource_name in (name, "*") if row.pattern_type == LITERAL
                  else name.startswith(row.resource_name))]
    return bool(meant) and all(row.permission == ALLOW for row in meant)


def test_open_resource_is_open_again_when_its_last_acl_is_removed():
    given = made(allow_everyone_if_no_acl_found="true")
    rules = {("AccessControlEntryRecord", (number,)): record(row) for number, row in enumerate(
        [rule(principal="User:b"), rule(principal="User:c"),
         rule("x", principal="User:b", pattern=PREFIXED)])}
    given.take(rules)
    assert not may(given) and not may(given, name="xy") and may(given, name="u")
    first, second, third = rules
    given.take({second: rules[second]}, frozenset([first, third]))
    assert not may(given) and may(given, name="xy")
    given.take({}, frozenset([second]))
    assert may(given)


def test_some_topic_is_open_to_all_unless_a_rule_names_them_all():
    """Like Kafka's: a producer without a transactional id may initialize if it may write to any
    topic.
    """
    def some(*rules):
        return made(*rules, allow_everyone_if_no_acl_found="true").authorize_any(
            user("a"), "h", WRITE, TOPIC).allowed
    assert some() and some(rule("x", principal="User:b")) and some(rule("x", WRITE, DENY))
    assert some(rule("x", principal="User:b", pattern=PREFIXED))
    assert not some(rule("*", principal="User:b")) and not some(rule("*", WRITE, DENY))
    assert some(rule("*", WRITE), rule("x", WRITE, DENY))


@pytest.mark.parametrize(("subnet", "inside", "outside"), [
    ("10.0.0.0/8", ["10.0.0.0", "10.255.255.255"], ["11.0.0.0", "::a00:0", "h"]),
    ("127.0.0.5/8", ["127.0.0.1"], ["128.0.0.1"]),
    ("0.0.0.0/0", ["1.2.3.4"], ["::1"]),
    ("1.2.3.4/32", ["1.2.3.4"], ["1.2.3.5"]),
    ("2001:db8::/32", ["2001:db8::7"], ["2001:db9::", "10.0.0.1"]),
    ("::/0", ["::1"], ["1.2.3.4"]),
    ("::ffff:10.0.0.0/104", ["10.1.2.3"], ["11.0.0.1", "::1"]),
])
def test_rule_for_a_subnet_applies_to_clients_from_it(subnet, inside, outside):
    """Compared with Kafka 4.4's CidrUtils (KIP-1276)."""
    allowing = made(rule(host=subnet))
    denying = made(rule(), rule(host=subnet, permission=DENY))
    for host in inside:
        assert may(allowing, host=host) and not may(denying, host=host), host
    for host in outside:
        assert not may(allowing, host=host) and may(denying, host=host), host
    assert allowing.knows_hosts


def test_removed_rule_for_a_subnet_no_longer_applies():
    given = made()
    rules = {("AccessControlEntryRecord", (number,)): record(row) for number, row in enumerate(
        [rule(), rule(host="10.0.0.0/8", permission=DENY), rule("u", host="10.1.0.0/8")])}
    given.take(rules)
    _, denying, other = rules
    assert not may(given, host="10.0.0.1") and may(given, name="u", host="10.0.0.1")
    given.take({}, frozenset([denying]))
    assert may(given, host="10.0.0.1") and may(given, name="u", host="10.0.0.1")
    given.take({}, frozenset([other]))
    assert not may(given, name="u", host="10.0.0.1")


@pytest.mark.parametrize("host", [
    "10.0.0.0/33", "nonsense/x", "10.0.0.0/255.0.0.0", "10.0.0.0/", "/8", "1.2.3/8", "10.0.0.0/-1",
    "10.0.0.0 /8", " 10.0.0.0/8", "::1/129", "10.0.0.0/8/8", "fe80::%eth0/64"])
def test_text_that_is_no_subnet_is_not_read_as_one(host):
    assert authorizer.subnet_of(host) is None


def test_stored_rule_whose_host_is_no_subnet_is_logged_once_with_a_replacement(caplog):
    key = ("AccessControlEntryRecord", (0,))
    rules = {key: record(rule(host="10.0.0.0/33", permission=DENY))}
    given = made()
    for changed in (frozenset([key]), None, frozenset([key])):
        given.take(rules, changed)
    [line] = caplog.records
    assert line.levelname == "WARNING" and "has no effect" in line.message
    assert "pylog acl add --host" in line.message and "pylog acl remove" in line.message
    assert line.rule == "Deny User:a Read from 10.0.0.0/33 on literal Topic t"
    assert not may(made(rule(host="10.0.0.0/33")), host="10.0.0.1")


def test_rules_for_addresses_are_not_logged(caplog):
    made(rule(), rule(host="10.0.0.1"), rule(host="::1"), rule(host="10.0.0.0/8"), rule("a/b"))
    assert caplog.records == []


def test_lines_about_rules_without_effect_are_bounded(caplog):
    made(*[rule(f"t{number}", host="nonsense/8")
           for number in range(authorizer.HOSTS_LOGGED_MAX + 7)])
    assert len(caplog.records) == authorizer.HOSTS_LOGGED_MAX + 1
    assert caplog.records[-1].count == 7


def test_rule_with_codes_of_a_later_version_is_shown_with_their_numbers():
    later = Rule(99, 9, "t", "User:a", "*", 98, ALLOW)
    assert authorizer.shown(later) == "Allow User:a 98 from * on 9 99 t"


def test_credentials_change_no_decision():
    given = made(rule())
    assert given.take({("UserScramCredentialRecord", ("a", 1)): None},
                      frozenset([("UserScramCredentialRecord", ("a", 1))])) is False
    assert may(given)


@pytest.mark.parametrize("name", ["t", "other", "t77", "in-7"])
@pytest.mark.parametrize("hosts", [1, 500])
def test_decision_cost_does_not_depend_on_the_acl_count(name, hosts):
    own = [rule(), rule("in-", pattern=PREFIXED)]
    others = [row for number in range(5000) for row in (
        rule(f"t{number}", principal=f"User:{number % 50}", host=f"10.0.0.{number % hosts}"),
        rule("p" * (number % 200 + 1), principal=f"User:u{number}", pattern=PREFIXED),
    )] + [rule(f"own-{number}") for number in range(500)]
    assert steps_of(made(*own, *others), name) == steps_of(made(*own), name)


def steps_of(given: StandardAuthorizer, name: str) -> int:
    with steps_in(authorizer) as counted:
        may(given, READ, name)
    return counted.lines


def test_cost_of_adding_an_acl_does_not_depend_on_the_acl_count():
    def added(given: StandardAuthorizer) -> int:
        key = ("AccessControlEntryRecord", (-1,))
        with steps_in(authorizer) as counted:
            given.take({key: record(rule("new"))}, frozenset([key]))
            given.take({}, frozenset([key]))
        return counted.lines

    assert added(made(rule())) == added(made(*[rule(f"t{number}") for number in range(2000)]))
