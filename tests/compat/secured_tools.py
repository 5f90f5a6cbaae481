"""Kafka's own tools on a broker with authentication, each with its --command-config.

Owns: nothing.
Invariants: as in client_tools, a tool's output is checked.
"""

import re

CLASSES = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-configs, users": "org.apache.kafka.tools.ConfigCommand",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-topics, --command-config": "org.apache.kafka.tools.TopicCommand",
}


def _match(pattern: str, told: str) -> re.Match:
    found = re.search(pattern, told, re.MULTILINE)
    assert found, f"no {pattern!r} in: {told[:300]}"
    return found


def acls(tools, topic: str) -> str:
    """Add a consumer's ACLs, list them by resource and by principal, and remove one."""
    def ask(*arguments, **options):
        return tools.ask("kafka-acls", *arguments, **options)

    principal, of = "User:bob", ("--topic", topic)
    ask("--add", "--allow-principal", principal, "--consumer", *of, "--group", f"{topic}-group")
    ask("--add", "--deny-principal", principal, "--deny-host", "10.0.0.1", "--operation", "Read",
        "--topic", f"{topic}-", "--resource-pattern-type", "prefixed")
    told = ask("--list", *of)
    _match(rf"resourceType=TOPIC, name={topic}, patternType=LITERAL", told)
    for operation in ("READ", "DESCRIBE"):
        _match(rf"principal={principal}, host=\*, operation={operation}, permissionType=ALLOW",
               told)
    told = ask("--list", "--principal", principal)
    _match(rf"resourceType=GROUP, name={topic}-group, patternType=LITERAL", told)
    told = ask("--list", "--topic", f"{topic}-more", "--resource-pattern-type", "match")
    _match(rf"name={topic}-, patternType=PREFIXED", told)
    _match(r"host=10\.0\.0\.1, operation=READ, permissionType=DENY", told)
    ask("--remove", "--force", "--allow-principal", principal, "--operation", "Describe", *of)
    told = ask("--list", *of)
    assert "operation=DESCRIBE" not in told and "operation=READ" in told, told[:300]
    ask("--remove", "--force", *of)
    assert principal not in ask("--list", *of)
    return "add, list, remove; literal and prefixed, allow and deny, by principal and resource"


def users(tools, topic: str) -> str:
    """Set, describe and delete SCRAM credentials."""
    def ask(*arguments, **options):
        return tools.ask("kafka-configs, users", *arguments, "--entity-type", "users",
                         "--entity-name", topic, **options)

    ask("--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=first],"
                                   "SCRAM-SHA-512=[password=second]")
    told = ask("--describe")
    _match(f"SCRAM credential configs for user-principal '{topic}' are "
          "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096", told)
    ask("--alter", "--delete-config", "SCRAM-SHA-256")
    told = ask("--describe")
    assert "SCRAM-SHA-512" in told and "SCRAM-SHA-256" not in told, told[:300]
    ask("--alter", "--delete-config", "SCRAM-SHA-512")
    assert "SCRAM-SHA" not in ask("--describe")
    ask("--alter", "--add-config", "SCRAM-SHA-256=[iterations=100,password=x]", fails=True)
    return "SCRAM credentials added, described, deleted; too few iterations refused"


def tokens(tools, topic: str) -> str:
    """Create, describe, renew and immediately expire a delegation token."""
    def ask(*arguments, **options):
        return tools.ask("kafka-delegation-tokens", *arguments, **options)

    told = ask("--create", "--max-life-time-period", -1, "--renewer-principal", "User:bob")
    row = _match(r"^(\S+)\s+(\S+==|\S+)\s+User:alice\s+", told)
    identity, secret = row[1], row[2]
    assert identity in ask("--describe", "--owner-principal", "User:alice")
    _match("Completed renew operation", ask("--renew", "--renew-time-period", -1, "--hmac", secret))
    _match("Completed expire operation", ask("--expire", "--expiry-time-period", -1,
                                            "--hmac", secret))
    assert identity not in ask("--describe", "--owner-principal", "User:alice")
    return "create, describe, renew, expire"


def topics(tools, topic: str) -> str:
    """Administer topics over TLS and SCRAM."""
    ask = "kafka-topics, --command-config"
    assert topic in tools.ask(ask, "--list").splitlines()
    tools.ask(ask, "--create", "--topic", f"{topic}-made", "--partitions", 2)
    _match("PartitionCount: 2", tools.ask(ask, "--describe", "--topic", f"{topic}-made"))
    tools.ask(ask, "--delete", "--topic", f"{topic}-made")
    return "TLS and SCRAM; create, list, describe, delete"


FLOWS = {"kafka-acls": acls, "kafka-configs, users": users, "kafka-delegation-tokens": tokens,
         "kafka-topics, --command-config": topics}
assert FLOWS.keys() == CLASSES.keys()
