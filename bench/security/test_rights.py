"""The cost of ACLs: none, and ten thousand of other principals, prefixes and topics.

On the event loop: a decision, and adding a rule. On reactors: one-record Produces, by the broker's
CPU, two brokers alternating in one run.
"""

import statistics
import subprocess
from types import SimpleNamespace

import pytest

from bench.brokers import PylogBroker
from pylog.testing.ports import free_port
from bench.programs import load_client
from pylog.client.admin.blocking import AclBinding, Admin, NewTopic
from pylog.config import Settings
from pylog.security.authorization.access import STANDARD
from pylog.security.authorizer import (
    ACCESS_RULE,
    ALLOW,
    LITERAL,
    PREFIXED,
    READ,
    TOPIC,
    Rule,
    StandardAuthorizer,
)
from pylog.security.principals import user

COUNTS = [0, 10_000]
REQUESTS, ROUNDS = 200_000, 7


def rules(count: int) -> list[Rule]:
    return [Rule(TOPIC, PREFIXED if number % 2 else LITERAL, f"{'p' * (number % 40)}{number}",
                 f"User:u{number % 500}", "*", READ, ALLOW) for number in range(count)]


def kept(rule: Rule) -> SimpleNamespace:
    return SimpleNamespace(**rule._asdict(), permission_type=rule.permission)


def authorizer(count: int) -> StandardAuthorizer:
    own = Rule(TOPIC, LITERAL, "t", "User:me", "*", READ, ALLOW)
    made = StandardAuthorizer(Settings())
    made.take({(ACCESS_RULE, (number,)): kept(rule)
               for number, rule in enumerate([own, *rules(count)])})
    return made


@pytest.mark.parametrize("count", COUNTS)
def test_a_decision(benchmark, count):
    benchmark.group = "a decision"
    made, me = authorizer(count), user("me")
    assert benchmark(made.authorize, me, "127.0.0.1", READ, TOPIC, "t").allowed


@pytest.mark.parametrize("count", COUNTS)
def test_one_rule_more_and_less(benchmark, count):
    benchmark.group = "one rule more, and less"
    made, key = authorizer(count), (ACCESS_RULE, (-1,))
    new = {key: kept(Rule(TOPIC, LITERAL, "new", "User:me", "*", READ, ALLOW))}

    def run() -> None:
        made.take(new, frozenset([key]))
        made.take({}, frozenset([key]))

    benchmark(run)


def prepared(root, count: int) -> PylogBroker:
    broker = PylogBroker(root, free_port(), {
        "authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS",
        "log.flush.acks.all.enable": "false", "num.network.threads": "1"})
    broker.start()
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topics([NewTopic("t", num_partitions=1, replication_factor=1)])
        if count:
            admin.create_acls([AclBinding(
                "TOPIC", rule.resource_name, "PREFIXED" if rule.pattern_type == PREFIXED else
                "LITERAL", rule.principal, rule.host, "READ", "ALLOW")
                for rule in rules(count)], timeout=120)
    return broker


def cpu_s(broker: PylogBroker, requests: int) -> float:
    """Return the broker's CPU for Produces of one 100-byte record, 4 connections, 5 in flight."""
    before = broker.cpu_seconds()
    subprocess.run([load_client("produce"), str(broker.port), "t", "1", "4", "5", "1", "100", "1",
                    "600", str(requests)], check=True, capture_output=True, timeout=900)
    return broker.cpu_seconds() - before


def test_one_record_requests(benchmark, tmp_path):
    benchmark.group = "one-record Produces, CPU"
    brokers = [prepared(tmp_path / str(count), count) for count in COUNTS]
    taken: list[list[float]] = [[], []]

    def run() -> None:
        # Alternate the order from round to round.
        for which in ((0, 1), (1, 0))[len(taken[0]) % 2]:
            taken[which].append(cpu_s(brokers[which], requests))

    requests = 2000 if benchmark.disabled else REQUESTS
    try:
        for broker in brokers:
            cpu_s(broker, requests // 10)
        benchmark.pedantic(run, rounds=1 if benchmark.disabled else ROUNDS)
    finally:
        for broker in brokers:
            broker.stop()
    none, many = (statistics.median(each) * 1e6 / requests for each in taken)
    benchmark.extra_info["CPU s per million"] = {"none": round(none, 2), "10,000": round(many, 2)}
    benchmark.extra_info["ratio of medians"] = round(many / max(none, 1e-9), 3)
    benchmark.extra_info["ratio of sums"] = round(sum(taken[1]) / max(sum(taken[0]), 1e-9), 3)
