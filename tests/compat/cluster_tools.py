"""Kafka's own tools against a cluster of three brokerds, some of which restart during a flow.

Owns: the topics of its flows.
Invariants: three brokers: every flow begins and ends with three running brokers; output: a tool's
  output is checked, not only its exit status; retries: a tool runs again until an expected
  asynchronous change is visible.
Source: Kafka 4.3's tools.
"""

import itertools
import json
import re
import shutil
import tempfile
from pathlib import Path

from tests.compat import client_tools
from tests.compat.client_tools import Tools, plan_file, seen
from tests.fixtures.clusters import Cluster, until

SETTINGS = {"group.initial.rebalance.delay.ms": 200, "offsets.topic.num.partitions": 4,
            "transaction.state.log.num.partitions": 2, "replica.lag.time.max.ms": 3000,
            # A quota admits a whole fetch whenever its window is below the rate.
            "replica.fetch.max.bytes": 20_000, "leader.imbalance.check.interval.seconds": 3600,
            "metadata.log.max.snapshot.interval.ms": 2000}
WAIT_S = 120
SLOW_RATE = 2_000  # bytes per second: a move of SLOW_RECORDS can be cancelled
SLOW_RECORDS = 20_000
_SERIAL = itertools.count()


class Three:
    """The tools and their cluster."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.tools = Tools(cluster.bootstrap)

    def ask(self, name: str, *arguments, **options) -> str:
        return self.tools.ask(name, *arguments, **options)

    def until(self, pattern: str, name: str, *arguments) -> str:
        """Run a tool until its output matches the pattern, and return the output. Keeps retries."""
        found = []

        def is_done():
            found[:] = [self.ask(name, *arguments)]
            return re.search(pattern, found[0], re.MULTILINE)
        until(is_done, WAIT_S, f"no {pattern!r} from {name}")
        return found[0]

    def topic(self, assignment: str = "1:2:3", *more) -> str:
        """Create a topic with these replicas by kafka-topics and wait until all are in sync."""
        name = f"tools-{next(_SERIAL)}"
        self.ask("kafka-topics", "--create", "--if-not-exists", "--topic", name,
                 "--replica-assignment", assignment, *more)
        replicas = assignment.split(",")[0].split(":")
        self.until(rf"Partition: 0\s+Leader: \d+\s+Replicas: {','.join(replicas)}\s+"
                   rf"Isr: {_any_order(replicas)}\s", *_described(name))
        return name

    def killed(self, number: int) -> "_Killed":
        return _Killed(self.cluster, number)


class _Killed:
    """Kills one broker for a while. Keeps three brokers."""

    def __init__(self, cluster: Cluster, number: int):
        self._cluster = cluster
        self._number = number

    def __enter__(self) -> None:
        self._cluster.brokers[self._number].kill()

    def __exit__(self, *exception) -> None:
        if not self._cluster.brokers[self._number].alive():
            self._cluster.start_broker(self._number)


def _described(topic: str) -> tuple:
    return "kafka-topics", "--describe", "--topic", topic


def _any_order(ids) -> str:
    """Return a regular expression for these ids in any order, separated by commas."""
    return f"(?:{'|'.join(','.join(order) for order in itertools.permutations(ids))})"


# ---- topics -------------------------------------------------------------------------------------


def topics(three: Three) -> str:
    whole = three.topic()
    strict = three.topic("1:2:3", "--config", "min.insync.replicas=3")
    alone = three.topic("3", "--config", "min.insync.replicas=1")
    made = f"{whole}-made"
    three.ask("kafka-topics", "--create", "--topic", made, "--partitions", 6,
              "--replication-factor", 3)
    seen("PartitionCount: 6\tReplicationFactor: 3", three.ask(*_described(made)))
    refused = three.ask("kafka-topics", "--create", "--topic", f"{made}-4",
                        "--replication-factor", 4, fails=True)
    seen("target replication factor of 4 cannot be reached because only 3 broker", refused)
    three.ask("kafka-topics", "--alter", "--topic", made, "--partitions", 7)
    seen(r"Partition: 6\s+Leader: [123]\s+Replicas: \d,\d,\d", three.ask(*_described(made)))

    def listed(option: str) -> set:
        told = three.ask("kafka-topics", "--describe", option)
        return {name for name in (whole, strict, alone) if f"Topic: {name}\t" in told}

    problems = ("--under-replicated-partitions", "--under-min-isr-partitions",
                "--unavailable-partitions")
    assert [listed(option) for option in problems] == [set()] * 3
    assert listed("--at-min-isr-partitions") == {strict, alone}
    with three.killed(3):
        until(lambda: listed("--unavailable-partitions") == {alone}, WAIT_S)
        assert {whole, strict} <= listed("--under-replicated-partitions")
        assert strict in listed("--under-min-isr-partitions")
        assert whole in listed("--at-min-isr-partitions")
    until(lambda: not listed("--under-replicated-partitions"), WAIT_S)
    return ("replication factor, assignment by hand; under-replicated, unavailable, at and under "
            "min ISR while a broker is dead")


# ---- reassignment -------------------------------------------------------------------------------


def _plan(folder: str, topic: str, replicas: list) -> Path:
    return plan_file(folder, partitions=[
        {"topic": topic, "partition": 0, "replicas": replicas}])


def reassign(three: Three) -> str:
    tool = "kafka-reassign-partitions"
    topic = three.topic("1:2")
    three.tools.fill(topic, SLOW_RECORDS)
    with tempfile.TemporaryDirectory() as folder:
        wish = plan_file(folder, topics=[{"topic": topic}])
        told = three.ask(tool, "--generate", "--topics-to-move-json-file", wish,
                         "--broker-list", "2,3")
        proposed = json.loads(told.partition("Proposed partition reassignment configuration")[2])
        assert sorted(proposed["partitions"][0]["replicas"]) == [2, 3], proposed
        plan = _plan(folder, topic, [3, 1])
        arguments = "--reassignment-json-file", plan
        told = three.ask(tool, *arguments, "--execute", "--throttle", SLOW_RATE)
        seen(f"The inter-broker throttle limit was set to {SLOW_RATE} B/s", told)
        seen(f"Successfully started partition reassignment for {topic}-0", told)
        seen(rf"^{topic}-0: replicas: 3,1,2\. adding: 3\. removing: 2\.", three.ask(tool, "--list"))
        seen(f"Reassignment of partition {topic}-0 is still in progress",
             three.ask(tool, *arguments, "--verify"))
        seen(rf"leader.replication.throttled.rate={SLOW_RATE}", three.ask(
            "kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", 1))
        seen("Cannot execute because there is an existing partition assignment",
             three.ask(tool, *arguments, "--execute", fails=True))
        seen(f"Successfully cancelled partition reassignment for: {topic}-0|"
             f"Successfully cancelled partition reassignments for: {topic}-0",
             three.ask(tool, *arguments, "--cancel"))
        assert "No partition reassignments found" in three.ask(tool, "--list")
        three.until(r"Replicas: 1,2\s", *_described(topic))
        three.ask(tool, *arguments, "--execute", "--throttle", 1 << 30)
        told = three.until(f"Reassignment of partition {topic}-0 is completed", tool, *arguments,
                           "--verify")
        seen("Clearing broker-level throttles on brokers 1,2,3", told)
        seen(f"Clearing topic-level throttles on topic {topic}", told)
        assert "throttled" not in three.ask(
            "kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", 1)
        seen(r"Replicas: 3,1\s", three.ask(*_described(topic)))
    assert three.tools.end(topic) == SLOW_RECORDS
    return "generate, execute with a throttle, list, verify, cancel; the throttles go with the end"


def election(three: Three) -> str:
    tool = "kafka-leader-election"
    topic = three.topic("2:3", "--config", "min.insync.replicas=1")

    def elect(kind: str, **options) -> str:
        return three.ask(tool, "--election-type", kind, "--topic", topic, "--partition", 0,
                         **options)

    with three.killed(2):
        three.until(r"Leader: 3\s.*Isr: 3\s", *_described(topic))
    three.until(r"Leader: 3\s.*Isr: (3,2|2,3)\s", *_described(topic))
    seen(rf"Successfully completed leader election \(PREFERRED\) for partitions {topic}-0",
         elect("preferred"))
    seen(r"Leader: 2\s", three.ask(*_described(topic)))
    assert f"Valid replica already elected for partitions {topic}-0" in elect("preferred")
    brokers = three.cluster.brokers
    with three.killed(3):
        three.until(r"Leader: 2\s.*Isr: 2\s", *_described(topic))
        brokers[2].kill()
    # Broker 3 is back but was not in sync when the leader failed; broker 2 is eligible (KIP-966).
    try:
        three.until(r"Leader: none\s.*Isr: \s.*Elr: 2\s", *_described(topic))
        seen(rf"Successfully completed leader election \(UNCLEAN\) for partitions {topic}-0",
             elect("unclean"))
        three.until(r"Leader: 3\s.*Isr: 3\s", *_described(topic))
    finally:
        three.cluster.start_broker(2)
    three.until(r"Leader: 3\s.*Isr: (3,2|2,3)\s", *_described(topic))
    return "preferred, after its broker was dead; unclean, while who was in sync is dead"


def configs(three: Three) -> str:
    tool, topic = "kafka-configs", three.topic()

    def ask(kind: str, name: str | None, *arguments) -> str:
        where = ("--entity-name", name) if name else ("--entity-default",)
        return three.ask(tool, "--entity-type", kind, *where, *arguments)

    for kind, name, key, value in (
            ("topics", topic, "retention.ms", "12345"),
            ("brokers", "2", "log.cleaner.io.buffer.size", "600000"),
            ("brokers", None, "log.roll.ms", "7000000")):
        ask(kind, name, "--alter", "--add-config", f"{key}={value}")
        three.until(f"{key}={value}", tool, "--entity-type", kind,
                    *(("--entity-name", name) if name else ("--entity-default",)), "--describe")
    # A setting of a single broker applies only there, the default applies to each.
    for number in map(str, three.cluster.brokers):
        told = ask("brokers", number, "--describe", "--all")
        assert ("log.cleaner.io.buffer.size=600000" in told) == (number == "2"), number
        assert "log.roll.ms=7000000" in told and f"node.id={number}" in told, number
    with three.killed(1):
        assert "retention.ms=12345" in ask("topics", topic, "--describe")
    ask("brokers", "2", "--alter", "--delete-config", "log.cleaner.io.buffer.size")
    ask("brokers", None, "--alter", "--delete-config", "log.roll.ms")
    assert "600000" not in ask("brokers", "2", "--describe")
    return "topics, one broker, the default of brokers, each told by its broker"


def log_dirs(three: Three) -> str:
    topic = three.topic()
    three.tools.fill(topic, 100)

    def sizes(*more) -> dict:
        told = three.ask("kafka-log-dirs", "--describe", "--topic-list", topic, *more)
        rows = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
        return {row["broker"]: part["size"] for row in rows["brokers"]
                for directory in row["logDirs"] for part in directory["partitions"]}

    assert set(sizes()) == {1, 2, 3}
    until(lambda: len(set(sizes().values())) == 1, WAIT_S)
    assert set(sizes("--broker-list", "2,3")) == {2, 3}
    return "each broker's replica, of one size"


def verification(three: Three) -> str:
    return client_tools.verification(three.tools, three.topic("1:2:3,2:3:1"))


# ---- groups and offsets -------------------------------------------------------------------------


def consumer_groups(three: Three) -> str:
    """Test groups, independent of which broker leads the group's partition."""
    return client_tools.consumer_groups(three.tools, three.topic("1:2:3,2:3:1,3:1:2"))


def get_offsets(three: Three) -> str:
    topic = three.topic("1:2:3,2:3:1,3:1:2")
    three.tools.fill(topic, 300)
    assert three.tools.end(topic) == 300
    with three.killed(1):
        three.until(r"Partition: 0\s+Leader: [23]\s", *_described(topic))
        assert three.tools.end(topic) == 300
    return "of partitions led by different brokers, before and after one of them died"


# ---- the cluster --------------------------------------------------------------------------------


def quorum(three: Three) -> str:
    tool = "kafka-metadata-quorum"
    status = three.ask(tool, "describe", "--status")
    leader = int(seen(r"^LeaderId:\s+([123])$", status)[1])
    seen(r"^CurrentVoters:\s+\[.*\]$", status)
    told = three.ask(tool, "describe", "--replication")
    seen(rf"^{leader}\s+\S+\s+\d+\s+0\s+\S+\s+\S+\s+Leader\s*$", told)
    # Each standby controller has the log in its etcd, which may lag for a moment.
    followers = re.findall(r"^([123])\s+\S+\s+\d+\s+\d+\s+\S+\s+\S+\s+Follower\s*$", told,
                           re.MULTILINE)
    assert {leader, *map(int, followers)} == {1, 2, 3}, told
    epoch = int(seen(r"^LeaderEpoch:\s+(\d+)$", status)[1])
    with three.killed(leader):
        others = Three(three.cluster)
        others.tools = Tools(",".join(broker.bootstrap for number, broker in
                                      three.cluster.brokers.items() if number != leader))
        told = others.until(rf"^LeaderId:\s+(?!{leader})[123]$", tool, "describe", "--status")
        assert int(seen(r"^LeaderEpoch:\s+(\d+)$", told)[1]) > epoch
        # Its etcd dies with it, so the next controller receives nothing from it.
        heard = [""]

        def is_silent() -> bool:
            heard.append(seen(rf"^{leader}\s+\S+\s+\S+\s+\d+\s+(\S+)\s+\S+\s+Follower\s*$",
                              others.ask(tool, "describe", "--replication"))[1])
            return heard[-1] == heard[-2]
        until(is_silent, WAIT_S, f"controller {leader} is heard all the time")
    return "status and replication, of one controller and of the next"


def features(three: Three) -> str:
    told = three.ask("kafka-features", "describe")
    for name in ("metadata.version", "group.version", "transaction.version"):
        seen(rf"Feature: {re.escape(name)}\s.*FinalizedVersionLevel: \S+", told)
    three.ask("kafka-features", "upgrade", "--feature", "transaction.version=99", fails=True)
    return "describe; a level that no broker has is refused"


def api_versions(three: Three) -> str:
    told = three.ask("kafka-broker-api-versions")
    for number, broker in three.cluster.brokers.items():
        seen(rf"^127\.0\.0\.1:{broker.port} \(id: {number} rack: null isFenced: false\) -> \(",
             told)
    return "of each broker"


def cluster(three: Three) -> str:
    def run(action: str, *more, **options) -> str:
        return three.tools.run("kafka-cluster", action, "--bootstrap-server",
                               three.tools.bootstrap, *more, **options)

    seen(r"^Cluster ID: \S{22}$", run("cluster-id"))
    told = run("list-endpoints")
    for number, broker in three.cluster.brokers.items():
        seen(rf"^{number}\s+127\.0\.0\.1\s+{broker.port}\s", told)
    with three.killed(3):
        until(lambda: not re.search(r"^3\s", run("list-endpoints"), re.MULTILINE), WAIT_S)
        seen(r"^3\s.*fenced", run("list-endpoints", "--include-fenced-brokers"))
        seen("Broker 3 is no longer registered", run("unregister", "--id", 3))
        assert not re.search(r"^3\s", run("list-endpoints", "--include-fenced-brokers"),
                             re.MULTILINE)
    until(lambda: re.search(r"^3\s", run("list-endpoints"), re.MULTILINE), WAIT_S)
    return "cluster-id, list-endpoints, unregister a dead broker, which may come back"


# ---- the metadata log ---------------------------------------------------------------------------


def _copy(three: Three, number: int, folder: str) -> Path:
    """Copy a broker's metadata log, because the tools need exclusive access."""
    copy = Path(folder) / "__cluster_metadata-0"
    shutil.copytree(three.cluster.brokers[number].data_dir / copy.name, copy)
    return copy


def _has_snapshot(three: Three, number: int) -> bool:
    folder = three.cluster.brokers[number].data_dir / "__cluster_metadata-0"
    return any(folder.glob("*.checkpoint"))


def dump_log(three: Three) -> str:
    topic = three.topic()
    for number in three.cluster.brokers:
        until(lambda of=number: _has_snapshot(three, of), WAIT_S)
        with tempfile.TemporaryDirectory() as folder:
            copy = _copy(three, number, folder)
            told = three.tools.run("kafka-dump-log", "--cluster-metadata-decoder", "--files",
                                   ",".join(map(str, sorted([*copy.glob("*.log"),
                                                             max(copy.glob("*.checkpoint"))]))))
            # Records covered by the newest snapshot are no longer in the log.
            for kind in ("TOPIC_RECORD", "PARTITION_RECORD", "REGISTER_BROKER_RECORD", topic):
                assert kind in told, (number, kind)
            assert "Exception" not in told, number
    return "the metadata log and its snapshot on each of the three"


def metadata_shell(three: Three) -> str:
    topic = three.topic("2:3:1")
    for number in three.cluster.brokers:
        def is_done(of=number) -> bool:
            with tempfile.TemporaryDirectory() as folder:
                newest = max(_copy(three, of, folder).glob("*.checkpoint"), default=None)
                if newest is None:
                    return False
                shell = ("kafka-metadata-shell", "--snapshot", newest)
                return topic in three.tools.run(*shell, "ls", "/image/topics/byName") and \
                    bool(re.search(r"replicas=\[2, 3, 1\]", three.tools.run(
                        *shell, "cat", f"/image/topics/byName/{topic}/0")))
        until(is_done, WAIT_S, f"{topic} in no snapshot of {number}")
    return "topics and their replicas in a snapshot of each of the three"


FLOWS = {
    "kafka-configs": configs, "kafka-metadata-shell": metadata_shell,
    "kafka-topics": topics, "kafka-reassign-partitions": reassign,
    "kafka-leader-election": election, "kafka-log-dirs": log_dirs,
    "kafka-replica-verification": verification, "kafka-metadata-quorum": quorum,
    "kafka-features": features, "kafka-broker-api-versions": api_versions,
    "kafka-cluster": cluster, "kafka-consumer-groups": consumer_groups,
    "kafka-get-offsets": get_offsets, "kafka-dump-log": dump_log,
}
