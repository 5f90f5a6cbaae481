"""An Apache Kafka controller, a Kafka broker and a brokerd: if one broker dies, the other leads."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.kafka import run_tool
from pylog.testing.child import pause
from pylog.testing.ports import free_port
from tests.fixtures.brokers import Kafka
from tests.replication import support

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

THEIRS, OURS = 1, 2
BOTH = [THEIRS, OURS]
WAIT_S = 60.0
ELECTION_NOT_NEEDED = 84
SETTINGS = {"offsets.topic.replication.factor": 2, "offsets.topic.num.partitions": 2,
            "transaction.state.log.replication.factor": 2, "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 2, "broker.heartbeat.interval.ms": 300,
            "broker.session.timeout.ms": 3000, "replica.lag.time.max.ms": 3000}


def controller(root: Path) -> Kafka:
    port = free_port()
    address = f"CONTROLLER://127.0.0.1:{port}"
    made = Kafka(root, {**SETTINGS, "process.roles": "controller", "node.id": 3,
                        "controller.quorum.voters": f"3@127.0.0.1:{port}",
                        "listeners": address, "advertised.listeners": address})
    made.broker.wanted_port = port
    return made


def broker_of(root: Path, of: Kafka) -> Kafka:
    """A broker in the cluster of a controller."""
    port = free_port()
    address = f"PLAINTEXT://127.0.0.1:{port}"
    made = Kafka(root, {**SETTINGS, "process.roles": "broker", "node.id": THEIRS,
                        "controller.quorum.voters":
                            of.broker.overrides["controller.quorum.voters"],
                        "listeners": address, "advertised.listeners": address})
    made.broker.wanted_port = port
    made.data_dir.mkdir(parents=True)
    lines = (of.data_dir / "meta.properties").read_text().splitlines()
    cluster = next(line for line in lines if line.startswith("cluster.id="))
    (made.data_dir / "meta.properties").write_text(f"version=1\nnode.id={THEIRS}\n{cluster}\n")
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(the controller, Kafka's broker, ours), all running."""
    root = tmp_path_factory.mktemp("mixed")
    controls = controller(root / "controller").start()
    theirs = broker_of(root / "broker", controls)
    ours = support.member(root / "pylog", controls, OURS, SETTINGS)
    try:
        theirs.start()
        yield controls, theirs, ours.start()
        assert ours.alarms() == []
        assert ours.stop() == 0
    finally:
        ours.kill()
        theirs.kill()
        controls.kill()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def brokers(cluster):
    """(Kafka's broker, ours), both unfenced."""
    _, theirs, ours = cluster
    for broker in (theirs, ours):
        if not broker.alive():
            broker.start()
    for broker in (theirs, ours):
        assert support.until(lambda at=broker: support.brokers(at), BOTH, WAIT_S) == BOTH
    return theirs, ours


def led(theirs, ours, topic: str, replicas: list[int]) -> None:
    """Create a topic of one partition; returns when both brokers see both in sync."""
    support.create(theirs, topic, [replicas])
    for broker in (theirs, ours):
        support.settled(broker, topic, replicas[0], BOTH)


def lead(theirs, ours, topic: str, leader: int) -> None:
    """Make a broker lead both partitions of an internal topic; returns when both see it."""
    for partition in range(2):
        other = THEIRS if leader == OURS else OURS
        support.reassign(theirs, topic, {partition: [leader, other]})
        assert support.elect(theirs, topic, partition) in (0, ELECTION_NOT_NEEDED)
    wanted = [(leader, BOTH)] * 2
    for broker in (theirs, ours):
        assert support.until(lambda of=broker: support.states(of, topic), wanted) == wanted


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_pylog_leads_after_the_kafka_leader_is_killed(brokers):
    theirs, ours = brokers
    led(theirs, ours, "killed-kafka", [THEIRS, OURS])
    with support.Sending(ours, "killed-kafka") as sending:
        sending.more()
        theirs.kill()
        support.settled(ours, "killed-kafka", OURS, [OURS])
        sending.more()
        sending.more()
        theirs.start()
        support.settled(ours, "killed-kafka", OURS, BOTH)
        sending.more()
    assert support.consumed(ours, "killed-kafka", len(sending.sent)) == sending.sent
    support.same(theirs, ours, "killed-kafka")


def test_kafka_leads_after_the_pylog_leader_is_killed(brokers):
    theirs, ours = brokers
    led(theirs, ours, "killed-ours", [OURS, THEIRS])
    with support.Sending(theirs, "killed-ours") as sending:
        sending.more()
        ours.kill()
        support.settled(theirs, "killed-ours", THEIRS, [THEIRS])
        sending.more()
        sending.more()
        ours.start()
        support.settled(theirs, "killed-ours", THEIRS, BOTH)
        sending.more()
    assert support.consumed(theirs, "killed-ours", len(sending.sent)) == sending.sent
    support.same(theirs, ours, "killed-ours")


def test_killed_brokerd_leader_truncates_unreplicated_records(brokers):
    theirs, ours = brokers
    led(theirs, ours, "diverged", [OURS, THEIRS])
    support.produce(theirs, "diverged", numbers(0, 100))
    pause(theirs.broker.process)  # It stops fetching.
    try:
        # The first record may be in the response to a pending fetch, only ours has the others.
        for value in numbers(1000, 1010):
            support.produce(ours, "diverged", [value], acks=1)
        ours.kill()
    finally:
        theirs.broker.process.send_signal(signal.SIGCONT)
    support.settled(theirs, "diverged", THEIRS, [THEIRS])
    support.produce(theirs, "diverged", numbers(100, 200))
    ours.start()
    support.settled(theirs, "diverged", THEIRS, BOTH)
    found = support.consumed(ours, "diverged", 200)
    assert found in (numbers(0, 200), [*numbers(0, 100), b"1000", *numbers(100, 199)])
    support.same(theirs, ours, "diverged")


def member_of(group: str, topic: str, theirs, ours) -> Consumer:
    made = Consumer({
        "bootstrap.servers": f"{theirs.bootstrap},{ours.bootstrap}", "group.id": group,
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "session.timeout.ms": 6000, "log_level": 0})
    made.subscribe([topic])
    return made


def taken(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [one.value() for one in consumer.consume(count - len(found), 1.0)]
    return found


def commit(consumer: Consumer, topic: str, offset: int) -> None:
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def test_a_group_moves_with_its_coordinator_to_ours_and_back(brokers):
    theirs, ours = brokers
    led(theirs, ours, "grouped", [OURS, THEIRS])
    support.produce(theirs, "grouped", numbers(0, 300))
    for at, leader in ((0, OURS), (100, THEIRS), (200, OURS)):
        consumer = member_of("movers", "grouped", theirs, ours)
        assert taken(consumer, 100) == numbers(at, at + 100)
        lead(theirs, ours, "__consumer_offsets", leader)
        commit(consumer, "grouped", at + 100)
        consumer.close()


def test_group_continues_after_its_coordinator_is_killed(brokers):
    theirs, ours = brokers
    led(theirs, ours, "goes-on", [THEIRS, OURS])
    support.produce(theirs, "goes-on", numbers(0, 300))
    consumer = member_of("survivors", "goes-on", theirs, ours)
    assert taken(consumer, 100) == numbers(0, 100)
    lead(theirs, ours, "__consumer_offsets", OURS)
    commit(consumer, "goes-on", 100)
    ours.kill()
    # Its generation and its commits are on Kafka's broker, which leads now.
    assert taken(consumer, 100) == numbers(100, 200)
    commit(consumer, "goes-on", 200)
    ours.start()
    support.settled(theirs, "goes-on", THEIRS, BOTH)
    lead(theirs, ours, "__consumer_offsets", OURS)
    theirs.kill()
    assert taken(consumer, 100) == numbers(200, 300)
    commit(consumer, "goes-on", 300)
    consumer.close()


def test_transactions_reach_leaders_of_both_brokers_with_either_coordinator(brokers):
    theirs, ours = brokers
    topics = {"written-here": [OURS, THEIRS], "written-there": [THEIRS, OURS]}
    for topic, replicas in topics.items():
        led(theirs, ours, topic, replicas)

    def begun() -> Producer:
        made = Producer({"bootstrap.servers": f"{theirs.bootstrap},{ours.bootstrap}",
                         "transactional.id": "mixed", "log_level": 0})
        made.init_transactions(WAIT_S)
        return made

    def write(producer: Producer, value: bytes) -> None:
        producer.begin_transaction()
        for topic in topics:
            producer.produce(topic, value, partition=0)
        producer.flush(WAIT_S)

    begun()
    committed = []
    for leader in (OURS, THEIRS, OURS):
        lead(theirs, ours, "__transaction_state", leader)
        producer = begun()
        for number in range(3):
            committed.append(b"%d.%d" % (leader, number))
            write(producer, committed[-1])
            producer.commit_transaction(WAIT_S)
            write(producer, b"aborted")
            producer.abort_transaction(WAIT_S)
    for topic in topics:
        assert support.consumed(theirs, topic, len(committed)) == committed
        support.same(theirs, ours, topic)


def test_a_transaction_is_committed_though_its_coordinator_of_ours_is_killed(brokers):
    theirs, ours = brokers
    led(theirs, ours, "outlives", [OURS, THEIRS])
    settings = {"bootstrap.servers": f"{theirs.bootstrap},{ours.bootstrap}", "log_level": 0,
                "transactional.id": "outlives"}
    Producer(settings).init_transactions(WAIT_S)
    lead(theirs, ours, "__transaction_state", OURS)
    producer = Producer(settings)
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("outlives", b"before", partition=0)
    assert producer.flush(WAIT_S) == 0
    ours.kill()
    producer.produce("outlives", b"after", partition=0)
    producer.commit_transaction(WAIT_S)
    assert support.consumed(theirs, "outlives", 2) == [b"before", b"after"]
    ours.start()
    support.settled(theirs, "outlives", THEIRS, BOTH)
    producer.begin_transaction()
    producer.produce("outlives", b"last", partition=0)
    producer.commit_transaction(WAIT_S)
    assert support.consumed(ours, "outlives", 3)[-1] == b"last"
    support.same(theirs, ours, "outlives")


def test_kafka_tools_and_clean_stops_move_leaders(brokers, tmp_path):
    theirs, ours = brokers
    led(theirs, ours, "by-tools", [OURS, THEIRS])
    with support.Sending(theirs, "by-tools") as sending:
        sending.more()
        assert ours.stop() == 0
        # Leadership moved before the stop: there was no delay.
        assert support.states(theirs, "by-tools") == [(THEIRS, [THEIRS])]
        sending.more()
        ours.start()
        support.settled(theirs, "by-tools", THEIRS, BOTH)
        done = run_tool("org.apache.kafka.tools.LeaderElectionCommand", "--bootstrap-server",
                        ours.bootstrap, "--election-type", "PREFERRED", "--topic", "by-tools",
                        "--partition", 0)
        assert done.returncode == 0 and "by-tools-0" in done.stdout, done
        support.settled(ours, "by-tools", OURS, BOTH)
        sending.more()
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [
            {"topic": "by-tools", "partition": 0, "replicas": [THEIRS]}]}))
        done = run_tool("org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
                        "--bootstrap-server", ours.bootstrap, "--reassignment-json-file", plan,
                        "--execute")
        assert done.returncode == 0 and "Successfully started" in done.stdout, done
        support.settled(ours, "by-tools", THEIRS, [THEIRS])
        sending.more()
    assert support.consumed(ours, "by-tools", len(sending.sent)) == sending.sent
