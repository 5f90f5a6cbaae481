"""A brokerd in the cluster of a Kafka whose nodes use SASL_SSL only, with ACLs; and throttled
replication between the two, as kafka-reassign-partitions requests it.
"""

import json
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType,
)

from bench.kafka import run_tool
from pylog.testing.certificates import Authority, write
from pylog.testing.ports import free_port
from tests.fixtures.brokers import Brokerd, Kafka
from tests.replication import support

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

THEIRS, OURS = 1, 2
BOTH = [THEIRS, OURS]
WAIT_S = 60.0
MECHANISM = "PLAIN"
REAUTHENTICATE_MS = 4000
VALUE = b"v" * 100_000
STALLED_S = 2.0


def settings(root, jaas: str, mechanism: str = MECHANISM) -> dict:
    """Return settings of either node: plain text for the test's clients, SASL_SSL for nodes."""
    authority = Authority()
    own = authority.issue("node")
    return {
        "listener.security.protocol.map":
            "PLAINTEXT:PLAINTEXT,INSIDE:SASL_SSL,CONTROLLER:SASL_SSL",
        "inter.broker.listener.name": "INSIDE", "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": mechanism, "sasl.mechanism.inter.broker.protocol": mechanism,
        "sasl.mechanism.controller.protocol": mechanism,
        f"listener.name.inside.{mechanism.lower()}.sasl.jaas.config": jaas,
        f"listener.name.controller.{mechanism.lower()}.sasl.jaas.config": jaas,
        "connections.max.reauth.ms": REAUTHENTICATE_MS,
        "ssl.keystore.type": "PEM", "ssl.keystore.location": write(
            root, "own.pem", own.chain + own.key),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": write(root, "ca.pem", authority.pem),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:node;User:ANONYMOUS",
        "broker.heartbeat.interval.ms": 300, "broker.session.timeout.ms": 3000,
        "replica.lag.time.max.ms": 3000,
        "offsets.topic.replication.factor": 2, "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 2, "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    root = tmp_path_factory.mktemp("secured")
    jaas = ('org.apache.kafka.common.security.plain.PlainLoginModule required username="node" '
            'password="s3cret" user_node="s3cret";')
    with started(root, settings(root, jaas)) as both:
        yield both


@contextmanager
def started(root, shared: dict, of_kafka: dict | None = None, of_ours: dict | None = None):
    """(Kafka's, ours), both unfenced."""
    plain, inside, controller, own_port = (free_port() for _ in range(4))
    advertised = f"PLAINTEXT://127.0.0.1:{plain},INSIDE://127.0.0.1:{inside}"
    voters = f"1@127.0.0.1:{controller}"
    theirs = Kafka(root / "kafka", {
        **shared, "controller.quorum.voters": voters,
        "listeners": f"{advertised},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": advertised, **(of_kafka or {})})
    theirs.broker.wanted_port = plain
    ours = Brokerd(root / "pylog", {
        **shared, "process.roles": "broker", "node.id": OURS, "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{own_port},INSIDE://127.0.0.1:{free_port()}",
        **(of_ours or {})})
    try:
        theirs.start()
        ours.start()
        ours.port = own_port
        for broker in (theirs, ours):
            assert support.until(lambda at=broker: support.brokers(at), BOTH, WAIT_S) == BOTH
        yield theirs, ours
        assert ours.alarms() == []
        assert ours.stop() == 0
    finally:
        ours.kill()
        theirs.kill()


@pytest.mark.parametrize("replicas", [[THEIRS, OURS], [OURS, THEIRS]], ids=["theirs", "ours"])
def test_each_follows_the_other_while_logins_end(brokers, replicas):
    followed_while_logins_end(*brokers, replicas)


def followed_while_logins_end(theirs, ours, replicas: list) -> None:
    name = f"led-by-{replicas[0]}"
    # Decided by Kafka's controller; ours forwards the request.
    support.create(ours, name, [replicas])
    for broker in (theirs, ours):
        support.settled(broker, name, replicas[0], BOTH)
    with support.Sending(ours, name) as sending:
        end_s = time.monotonic() + 2.5 * REAUTHENTICATE_MS / 1000
        while time.monotonic() < end_s:
            sending.more()
            time.sleep(0.05)
    assert support.consumed(theirs, name, len(sending.sent)) == sending.sent
    support.same(theirs, ours, name)
    support.settled(theirs, name, replicas[0], BOTH)


def test_transactions_and_markers_cross_both_ways(brokers):
    theirs, ours = brokers
    topics = {"written-here": [OURS, THEIRS], "written-there": [THEIRS, OURS]}
    for name, replicas in topics.items():
        support.create(theirs, name, [replicas])
        for broker in brokers:
            support.settled(broker, name, replicas[0], BOTH)
    producer = Producer({"bootstrap.servers": ours.bootstrap, "transactional.id": "crossing",
                         "log_level": 0})
    producer.init_transactions(WAIT_S)
    for coordinator in (OURS, THEIRS):
        other = THEIRS if coordinator == OURS else OURS
        support.reassign(theirs, "__transaction_state", {0: [coordinator, other]})
        support.elect(theirs, "__transaction_state")
        for broker in brokers:
            support.settled(broker, "__transaction_state", coordinator, BOTH)
        producer.begin_transaction()
        for name in topics:
            producer.produce(name, b"by %d" % coordinator, partition=0)
        producer.commit_transaction(WAIT_S)
    for name in topics:
        assert support.consumed(theirs, name, 2) == [b"by 2", b"by 1"]
        support.same(theirs, ours, name)


def filled(broker, name: str, replica: int) -> None:
    support.create(broker, name, [[replica]])
    support.settled(broker, name, replica, [replica])
    support.produce(broker, name, [VALUE] * 60)


def reassign(broker, path, name: str, replicas: list, *words) -> str:
    path.write_text(json.dumps({"version": 1, "partitions": [
        {"topic": name, "partition": 0, "replicas": replicas}]}))
    done = run_tool("org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
                    "--bootstrap-server", broker.bootstrap, "--reassignment-json-file", path,
                    *words)
    assert done.returncode == 0, done
    return done.stdout


def test_kafkas_tool_throttles_our_replication_and_removes_the_throttle(brokers, tmp_path):
    theirs, ours = brokers
    filled(theirs, "copied-here", THEIRS)
    plan = tmp_path / "plan.json"
    told = reassign(ours, plan, "copied-here", BOTH, "--execute", "--throttle", 1000)
    assert "The inter-broker throttle limit was set to 1000 B/s" in told
    assert support.until(lambda: bool(support.segments(ours, "copied-here")), True)
    time.sleep(STALLED_S)
    assert support.states(theirs, "copied-here") == [(THEIRS, [THEIRS])]
    reassign(ours, plan, "copied-here", BOTH, "--execute", "--additional", "--throttle", 10**9)
    support.settled(theirs, "copied-here", THEIRS, BOTH)
    told = reassign(ours, plan, "copied-here", BOTH, "--verify")
    assert "Clearing broker-level throttles" in told and "Clearing topic-level" in told
    support.same(theirs, ours, "copied-here")


def alter(broker, kind, name: str, values: dict) -> None:
    """Set entries with a value and remove entries without."""
    entries = [ConfigEntry(key, value or "", incremental_operation=(
        AlterConfigOpType.SET if value else AlterConfigOpType.DELETE))
        for key, value in values.items()]
    client = support.admin(broker)  # This must live until the response arrives.
    for future in client.incremental_alter_configs(
            [ConfigResource(kind, name, incremental_configs=entries)]).values():
        future.result(support.WAIT_S)


def test_our_leader_replicates_within_its_rate(brokers, tmp_path):
    theirs, ours = brokers
    filled(ours, "copied-there", OURS)
    rate = {"leader.replication.throttled.rate": "1000"}
    replicas = {"leader.replication.throttled.replicas": "0:2"}
    alter(theirs, ResourceType.BROKER, str(OURS), rate)
    alter(theirs, ResourceType.TOPIC, "copied-there", replicas)
    reassign(theirs, tmp_path / "plan.json", "copied-there", [OURS, THEIRS], "--execute")
    assert support.until(lambda: bool(support.segments(theirs, "copied-there")), True)
    time.sleep(STALLED_S)
    assert support.states(ours, "copied-there") == [(OURS, [OURS])]
    alter(theirs, ResourceType.BROKER, str(OURS), dict.fromkeys(rate))
    support.settled(theirs, "copied-there", OURS, BOTH)
    support.same(theirs, ours, "copied-there")
