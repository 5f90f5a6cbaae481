"""`pylog acl`: ACLs are added, listed, explained, saved to a file and removed."""

import json

import pytest

from pylog.client import Admin, errors
from pylog.client.admin.types import AclBinding, AclFilter
from pylog.security.authorization.access import STANDARD
from tests.tools.support import run
from tests.wire.talk import unique


@pytest.fixture(scope="module")
def broker():
    from pylog.testing import Broker

    with Broker(settings={
            "authorizer.class.name": STANDARD,
            "super.users": "User:ANONYMOUS;User:root"}) as running:
        yield running


def rules(broker, *words) -> list:
    return run("acl", "list", *words, "--json", broker=broker).json


def explained(broker, who, operation, *on):
    return run("acl", "explain", "--principal", who, "--operation", operation, *on, "--json",
               broker=broker).json


def test_producer_and_consumer_acls_take_one_command_each(broker):
    topic, group = unique("acl"), unique("g")
    run("acl", "add", "--allow", "User:p", "--producer", "--topic", topic, broker=broker)
    run("acl", "add", "--allow", "User:c", "--consumer", "--topic", topic, "--group", group,
        broker=broker)
    assert {(row["principal"], row["operation"]) for row in rules(broker, "--topic", topic)} == {
        ("User:p", "WRITE"), ("User:p", "DESCRIBE"), ("User:p", "CREATE"), ("User:c", "READ"),
        ("User:c", "DESCRIBE")}
    assert [row["operation"] for row in rules(broker, "--group", group)] == ["READ"]
    again = run("acl", "add", "--allow", "User:p", "--producer", "--topic", topic, broker=broker)
    assert "no rule added" in again.out + again.err


@pytest.mark.parametrize("on,operation,words", [
    (("--topic", "t"), "cluster_action",
     "CLUSTER_ACTION does not apply to a TOPIC; expected one of ALL, READ"),
    (("--transactional-id", "x"), "READ",
     "does not apply to a TRANSACTIONAL_ID; expected one of ALL, WRITE, DESCRIBE, TWO_PHA"),
    (("--user", "User:b"), "ALTER", "expected one of ALL, CREATE_TOKENS, DESCRIBE_TOKENS"),
    (("--topic", "t", "--cluster"), "IDEMPOTENT_WRITE", "to a TOPIC"),
    (("--group", "g"), "ANY", "ANY does not apply to a GROUP"),
])
def test_acl_on_an_unused_operation_is_rejected_with_the_valid_ones(broker, on, operation, words):
    ended = run("acl", "add", "--allow", "User:a", "--operation", operation, *on, broker=broker,
                fails=True)
    assert words in ended.err


def test_the_rule_that_decides_is_named(broker):
    prefix = unique("ex")
    run("acl", "add", "--allow", "User:a", "--operation", "read", "--topic", prefix, "--prefixed",
        broker=broker)
    run("acl", "add", "--deny", "User:a", "--topic", f"{prefix}-secret", broker=broker)
    allowed = explained(broker, "User:a", "describe", "--topic", f"{prefix}-open")
    assert allowed["allowed"] and allowed["rule"]["pattern_type"] == "PREFIXED"
    denied = explained(broker, "User:a", "read", "--topic", f"{prefix}-secret")
    assert not denied["allowed"] and denied["rule"]["permission"] == "DENY"
    assert denied["by"].endswith("from *; super users may do it anyway")


def test_permission_decided_by_broker_settings_is_not_reported_as_denied(broker):
    found = explained(broker, "User:root", "alter", "--cluster")
    assert (found["allowed"], found["rule"]) == (None, None)
    said = run("acl", "explain", "--principal", "User:root", "--operation", "alter", "--cluster",
               broker=broker).out
    assert said.startswith("by the rules denied: no rule allows it. Super users may do it anyway")


@pytest.mark.parametrize("who,more,allowed,by", [
    ("User:root", "", True, "a super user"), ("User:b", "", False, "no rule allows it"),
    ("User:b", "allow.everyone.if.no.acl.found=true", True, "allow.everyone.if.no.acl.found")])
def test_with_the_brokers_settings_super_users_count(broker, tmp_path, who, more, allowed, by):
    (tmp_path / "p").write_text(
        f"authorizer.class.name={STANDARD}\nsuper.users=User:root\n{more}\n")
    found = explained(broker, who, "alter", "--topic", unique("set"), "--properties",
                      tmp_path / "p")
    assert found == {"allowed": allowed, "rule": None, "by": by}


@pytest.mark.parametrize("text,words", [
    ("", "without authorizer.class.name every connected client may do everything"),
    ("authorizer.class.name=a:B", "do not use these rules"),
    ("no.such.setting=1", "unknown setting")])
def test_explain_rejects_settings_without_effective_acls(broker, tmp_path, text, words):
    (tmp_path / "p").write_text(text)
    ended = run("acl", "explain", "--principal", "User:a", "--operation", "READ", "--topic", "t",
                "--properties", tmp_path / "p", broker=broker, fails=True)
    assert words in ended.err


def test_acls_survive_export_and_import(broker, tmp_path):
    topic, file = unique("file"), tmp_path / "rules.json"
    run("acl", "add", "--allow", "User:f", "--operation", "WRITE", "--topic", topic,
        "--host", "10.0.0.1", broker=broker)
    run("acl", "export", file, broker=broker)
    kept = json.loads(file.read_text())
    run("acl", "remove", "--principal", "User:f", "--yes", broker=broker)
    assert rules(broker, "--principal", "User:f") == []
    dry = run("acl", "import", file, "--dry-run", "--json", broker=broker).json
    assert [row["principal"] for row in dry] == ["User:f"]
    assert rules(broker, "--principal", "User:f") == []
    run("acl", "import", file, broker=broker)
    run("acl", "add", "--allow", "User:other", "--topic", topic, broker=broker)
    run("acl", "import", file, "--only", "--yes", broker=broker)
    run("acl", "export", tmp_path / "again.json", broker=broker)
    assert json.loads((tmp_path / "again.json").read_text()) == kept


def test_remove_confirms_prints_removed_acls_and_keeps_others(broker):
    topic = unique("gone")
    run("acl", "add", "--allow", "User:a", "--allow", "User:b", "--topic", topic, broker=broker)
    run("acl", "remove", "--topic", topic, "--principal", "User:a", broker=broker, fails=True)
    dry = run("acl", "remove", "--topic", topic, "--dry-run", "--json", broker=broker).json
    assert [row["principal"] for row in dry] == ["User:a", "User:b"]
    run("acl", "remove", "--topic", topic, "--principal", "User:a", "--yes", broker=broker)
    assert [row["principal"] for row in rules(broker, "--topic", topic)] == ["User:b"]


@pytest.mark.parametrize("words", [
    ("--allow", "User:a", "--topic", "NAME", "--producer"),
    ("--allow", "User:a", "--deny", "User:b", "--group", "NAME", "--consumer", "--host", "::1"),
    ("--deny", "User:a", "--topic", "NAME", "--prefixed", "--operation", "read",
     "--operation", "WRITE"),
    ("--allow", "User:a", "--cluster", "--prefixed", "--operation", "ALTER")])
def test_remove_undoes_add_with_the_same_arguments(broker, words):
    words = [unique("same") if word == "NAME" else word for word in words]
    others = [f"{word}-else" if word.startswith("User:") else word for word in words]
    run("acl", "add", *others, broker=broker)
    before = rules(broker)
    run("acl", "add", *words, broker=broker)
    assert len(rules(broker)) > len(before)
    run("acl", "remove", *words, "--yes", broker=broker)
    assert rules(broker) == before
    run("acl", "remove", *others, "--yes", broker=broker)


def test_remove_distinguishes_allow_from_deny(broker):
    topic = unique("both")
    for word in ("--allow", "--deny"):
        run("acl", "add", word, "User:a", "--topic", topic, broker=broker)
    run("acl", "remove", "--deny", "User:a", "--yes", broker=broker)
    assert [row["permission"] for row in rules(broker, "--topic", topic)] == ["ALLOW"]


@pytest.mark.parametrize("words", [
    ("add", "--topic", "t"), ("remove", "--allow", "User:a", "--producer", "--yes"),
    ("remove", "--cluster", "--consumer", "--yes"), ("remove", "--yes"),
    ("add", "--allow", "User:a"),
    ("add", "--allow", "User:a", "--topic", "t", "--operation", "fly"),
    ("add", "--allow", "nobody", "--topic", "t"),
    ("add", "--allow", "User:a", "--topic", "t", "--producer", "--operation", "READ"),
    ("explain", "--principal", "nobody", "--operation", "READ", "--topic", "t"),
    ("explain", "--principal", "User:a", "--operation", "READ"), ("import", "/nowhere")])
def test_contradictory_arguments_are_rejected_in_one_line(broker, words):
    run("acl", *words, broker=broker, fails=True)


RULE = {"resource_type": "TOPIC", "resource_name": "t", "pattern_type": "LITERAL",
        "principal": "User:a", "host": "*", "operation": "READ", "permission": "ALLOW"}


@pytest.mark.parametrize("content,words", [
    ("", "Expecting value"), ("{}", "no list"), ("[1]", "rule 1 is no object"),
    ("[[]]", "rule 1 is no object"),
    (json.dumps([RULE, {"resource_type": "TOPIC", "host": "*"}]),
     "rule 2 lacks resource_name, pattern_type, principal, operation, permission"),
    (json.dumps([RULE | {"topic": "t"}]), "rule 1 has no field topic"),
    (json.dumps([RULE | {"host": None}]), "rule 1: host is no text: null"),
    (json.dumps([RULE | {"operation": "fly"}]),
     "rule 1: operation 'fly' is not one of ALL, READ, WRITE"),
    (json.dumps([RULE | {"pattern_type": "ANY"}]),
     "rule 1: pattern_type 'ANY' is not one of LITERAL, PREFIXED")])
def test_invalid_acl_file_is_reported_with_the_error(
        broker, tmp_path, content, words):
    (tmp_path / "rules.json").write_text(content)
    ended = run("acl", "import", tmp_path / "rules.json", broker=broker, fails=True)
    assert f"rules.json: expected a list of rules as `pylog acl export` writes it: {words}" \
        in ended.err


def test_missing_authorizer_is_reported(brokerd):
    refused = run("acl", "list", broker=brokerd, fails=True).err
    assert "No Authorizer is configured. Set authorizer.class.name=" in refused


def test_the_admin_client_has_kafkas_calls(broker):
    rule = AclBinding("TOPIC", unique("api"), "LITERAL", "User:x", "*", "READ", "ALLOW")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_acls([rule])
        wanted = AclFilter("TOPIC", rule.resource_name, "LITERAL")
        assert admin.describe_acls(wanted) == [rule]
        with pytest.raises(errors.KafkaError) as failed:
            admin.create_acls([rule._replace(principal="x"), rule])
        assert failed.value.results[rule] is None
        assert admin.delete_acls([wanted]) == {wanted: [rule]}
        assert admin.describe_acls(wanted) == []


def test_a_file_of_rules_that_is_no_text_is_named(broker, tmp_path):
    (tmp_path / "rules.json").write_bytes(b"[\xff]")
    ended = run("acl", "import", tmp_path / "rules.json", broker=broker, fails=True)
    assert ended.err.endswith("rules.json: not UTF-8 text\n")
