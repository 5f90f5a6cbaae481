"""Quotas: set, listed and deleted, by user, client id, both, and address."""

from tests.tools.support import run
from tests.wire.talk import unique


def listed(broker, *words) -> dict:
    rows = run("quotas", "list", *words, "--json", broker=broker).json
    return {row["quota"]: row["value"] for row in rows}


def test_quotas_of_a_user_are_set_listed_and_deleted(target):
    user = unique("user")
    told = run("quotas", "set", "--user", user, "producer_byte_rate=1048576",
               "request_percentage=50", broker=target)
    assert told.out == (f"user {user}: producer_byte_rate=1048576 set, "
                        "request_percentage=50 set\n")
    assert listed(target, "--user", user) == {"producer_byte_rate": 1048576.0,
                                              "request_percentage": 50.0}
    table = run("quotas", "list", broker=target).out
    assert ["user", user, "producer_byte_rate", "1048576"] in map(str.split, table.splitlines())
    run("quotas", "delete", "--user", user, "request_percentage", broker=target)
    assert listed(target, "--user", user) == {"producer_byte_rate": 1048576.0}
    run("quotas", "delete", "--user", user, broker=target)
    assert listed(target, "--user", user) == {}
    assert "has no quotas" in run("quotas", "delete", "--user", user, broker=target,
                                  fails=True).err


def test_client_id_of_a_user_has_separate_quotas(target):
    user, client = unique("user"), unique("client")
    both = ["--user", user, "--client", client]
    run("quotas", "set", *both, "consumer_byte_rate=10", broker=target)
    run("quotas", "set", "--user", user, "consumer_byte_rate=20", broker=target)
    run("quotas", "delete", "--user", user, broker=target)
    rows = run("quotas", "list", "--user", user, "--json", broker=target).json
    assert [(row["entity"], row["value"]) for row in rows] == [
        ({"user": user, "client-id": client}, 10.0)]


def test_defaults_are_an_entity_too(target):
    run("quotas", "set", "--client-defaults", "producer_byte_rate=5", broker=target)
    assert "client-id <default>" in run("quotas", "list", broker=target).out
    run("quotas", "delete", "--client-defaults", broker=target)
    assert "client-id <default>" not in run("quotas", "list", broker=target).out


def test_a_dry_run_sets_nothing(target):
    user = unique("user")
    told = run("quotas", "set", "--user", user, "producer_byte_rate=1", "--dry-run", broker=target)
    assert "would be set" in told.out and listed(target, "--user", user) == {}


def test_invalid_quota_is_rejected(target):
    def refused(*words):
        return run("quotas", "set", *words, broker=target, fails=True).err

    assert "nearest valid name: producer_byte_rate" in refused("--user", "u",
                                                               "produce_byte_rate=1")
    assert "there is no quota" in refused("--ip", "10.0.0.1", "producer_byte_rate=1")
    assert "expected a number" in refused("--user", "u", "producer_byte_rate=fast")
    assert "whose?" in refused("producer_byte_rate=1")
    assert "cannot be combined" in refused("--ip", "10.0.0.1", "--user", "u",
                                         "connection_creation_rate=1")
    assert "exclude each other" in refused("--user", "u", "--user-defaults", "request_percentage=1")
