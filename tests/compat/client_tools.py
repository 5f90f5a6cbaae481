"""Kafka's own tools: `python -m tests.compat.client_tools BOOTSTRAP TOOL TOPIC`.

Owns: the tools' processes.
Invariants: every tool is the unmodified class that Kafka's start script of that name runs; output:
  a tool's output is checked, not only its exit status.
Source: Kafka 4.3's bin/*.sh for the classes.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.kafka import java_command
from tests.compat import flows, secured_tools, streams_tools

TOOL = "org.apache.kafka.tools."
CLASSES = {
    "kafka-topics": TOOL + "TopicCommand",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand",
    "kafka-consumer-groups": TOOL + "consumer.group.ConsumerGroupCommand",
    "kafka-groups": TOOL + "GroupsCommand",
    "kafka-get-offsets": TOOL + "GetOffsetShell",
    "kafka-delete-records": TOOL + "DeleteRecordsCommand",
    "kafka-log-dirs": TOOL + "LogDirsCommand",
    "kafka-console-producer": TOOL + "ConsoleProducer",
    "kafka-console-consumer": TOOL + "consumer.ConsoleConsumer",
    "kafka-producer-perf-test": TOOL + "ProducerPerformance",
    "kafka-consumer-perf-test": TOOL + "ConsumerPerformance",
    "kafka-verifiable-producer": TOOL + "VerifiableProducer",
    "kafka-verifiable-consumer": TOOL + "VerifiableConsumer",
    "kafka-e2e-latency": TOOL + "EndToEndLatency",
    "kafka-metadata-quorum": TOOL + "MetadataQuorumCommand",
    "kafka-features": TOOL + "FeatureCommand",
    "kafka-broker-api-versions": TOOL + "BrokerApiVersionsCommand",
    "kafka-cluster": TOOL + "ClusterTool",
    "kafka-leader-election": TOOL + "LeaderElectionCommand",
    "kafka-reassign-partitions": TOOL + "reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": TOOL + "ReplicaVerificationTool",
    "kafka-transactions": TOOL + "TransactionsCommand",
    "kafka-client-metrics": TOOL + "ClientMetricsCommand",
    "kafka-streams-application-reset": TOOL + "StreamsResetter",
    "kafka-dump-log": TOOL + "DumpLogSegments",
    "kafka-metadata-shell": "org.apache.kafka.shell.MetadataShell",
    **streams_tools.CLASSES,
    **secured_tools.CLASSES,
}
OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
RECORDS = 3000


class Tools:
    """Runs the tools against one broker."""

    def __init__(self, bootstrap: str):
        self.bootstrap = bootstrap

    def command(self, name: str, *arguments) -> list[str]:
        return java_command(CLASSES[name], *arguments, heap="192m", jvm_options=OPTIONS)

    def run(self, name: str, *arguments, fails: bool | None = False, text: str = "") -> str:
        """Run a tool and return its output. fails: the expected kind of exit, None for either."""
        done = subprocess.run(self.command(name, *arguments), input=text, text=True,
                              capture_output=True, timeout=100)
        told = done.stdout + done.stderr
        print(f"--- {name} {' '.join(map(str, arguments))}\n{told}", file=sys.stderr)
        assert fails is None or (done.returncode != 0) == fails, \
            f"{name} ended with {done.returncode}: {told[:200]}"
        return told

    def ask(self, name: str, *arguments, **options) -> str:
        config = os.environ.get("COMPAT_PROPERTIES")
        secure = ("--command-config", config) if config else ()
        return self.run(name, "--bootstrap-server", self.bootstrap, *secure, *arguments, **options)

    def start(self, name: str, *arguments, output=subprocess.DEVNULL) -> subprocess.Popen:
        return subprocess.Popen(
            self.command(name, "--bootstrap-server", self.bootstrap, *arguments),
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, text=True)

    def fill(self, topic: str, count: int = RECORDS, *more) -> str:
        return self.run("kafka-producer-perf-test", "--bootstrap-server", self.bootstrap,
                        "--topic", topic, "--num-records", count, "--record-size", 100,
                        "--throughput", -1, *more)

    def fill_every_partition(self, topic: str) -> None:
        """Send records with fixed keys, because without keys a short run may use a single
        partition.
        """
        text = "".join(f"key{number}\tvalue\n" for number in range(RECORDS))
        self.ask("kafka-console-producer", "--topic", topic, "--reader-property",
                 "parse.key=true", text=text)

    def end(self, topic: str, time_name: str = "latest") -> int:
        told = self.ask("kafka-get-offsets", "--topic", topic, "--time", time_name)
        return sum(int(found) for found in re.findall(rf"^{topic}:\d+:(\d+)$", told, re.MULTILINE))


def seen(pattern: str, told: str) -> re.Match:
    found = re.search(pattern, told, re.MULTILINE)
    assert found, f"no {pattern!r} in: {told[:200]}"
    return found


def plan_file(folder: str, **content) -> Path:
    path = Path(folder) / "plan.json"
    path.write_text(json.dumps({"version": 1, **content}))
    return path


def topics(tools: Tools, topic: str) -> str:
    name = f"{topic}-made"
    one = ("--topic", name)
    told = tools.ask("kafka-topics", "--create", *one, "--partitions", 2, "--replication-factor",
                     1, "--config", "retention.ms=5000000")
    seen(f"Created topic {name}", told)
    tools.ask("kafka-topics", "--create", *one, fails=True)
    tools.ask("kafka-topics", "--create", *one, "--if-not-exists")
    tools.ask("kafka-topics", "--alter", *one, "--partitions", 5)
    refused = tools.ask("kafka-topics", "--alter", *one, "--partitions", 4, fails=True)
    seen("currently has 5 partition", refused)
    told = tools.ask("kafka-topics", "--describe", *one)
    seen(r"PartitionCount: 5\s+ReplicationFactor: 1\s+Configs: .*retention\.ms=5000000", told)
    seen(r"Partition: 4\s+Leader: 1\s+Replicas: 1\s+Isr: 1", told)
    for option in ("--under-replicated-partitions", "--unavailable-partitions"):
        assert name not in tools.ask("kafka-topics", "--describe", option)
    assert name in tools.ask("kafka-topics", "--describe", "--topics-with-overrides")
    assert name in tools.ask("kafka-topics", "--list").splitlines()
    tools.ask("kafka-topics", "--delete", *one)
    assert name not in tools.ask("kafka-topics", "--list").splitlines()
    tools.ask("kafka-topics", "--delete", *one, fails=True)
    return "create, alter, describe, list, delete; rejected requests"


def configs(tools: Tools, topic: str) -> str:
    def ask(kind, name, *arguments, **options):
        where = ("--entity-type", kind, *(("--entity-name", name) if name else
                                          ("--entity-default",)))
        return tools.ask("kafka-configs", *where, *arguments, **options)

    ask("topics", topic, "--alter", "--add-config",
        "retention.ms=12345,cleanup.policy=[compact,delete]")
    told = ask("topics", topic, "--describe")
    assert "retention.ms=12345 sensitive=false" in told
    assert "cleanup.policy=compact,delete" in told
    assert "segment.bytes=1073741824" in ask("topics", topic, "--describe", "--all")
    ask("topics", topic, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in ask("topics", topic, "--describe")
    refused = ask("topics", topic, "--alter", "--add-config", "retention.ms=x", fails=True)
    assert "Invalid value x for configuration retention.ms" in refused
    for kind, name, key, value in (
            ("brokers", "1", "log.cleaner.io.buffer.size", "600000"),
            ("brokers", None, "log.roll.ms", "7000000"),
            ("broker-loggers", "1", "root", "INFO"),
            ("groups", f"{topic}-group", "consumer.session.timeout.ms", "50000"),
            ("client-metrics", f"{topic}-metrics", "interval.ms", "1000")):
        ask(kind, name, "--alter", "--add-config", f"{key}={value}")
        assert f"{key}={value}" in ask(kind, name, "--describe"), f"{kind} {key}"
        if kind != "broker-loggers":
            ask(kind, name, "--alter", "--delete-config", key)
    assert "node.id=1" in ask("brokers", "1", "--describe", "--all")
    for kind, name in (("users", "alice"), ("users", None), ("clients", "reader"),
                       ("clients", None)):
        ask(kind, name, "--alter", "--add-config", "consumer_byte_rate=1000000000")
        told = ask(kind, name, "--describe")
        seen(r"consumer_byte_rate=1(\.0E9|000000000)", told)
        ask(kind, name, "--alter", "--delete-config", "consumer_byte_rate")
    return ("topics, brokers, the default of brokers, loggers, groups, client metrics, "
            "quotas of users and clients")


def group_rows(told: str, topic: str) -> dict[int, tuple[str, str]]:
    """Parse the description of a group into partition -> (committed offset, end offset)."""
    return {int(row[0]): (row[1], row[2]) for row in re.findall(
        rf"^\S+\s+{topic}\s+(\d+)\s+(\d+|-)\s+(\d+)\s", told, re.MULTILINE)}


def members(tools: Tools, topic: str, group: str) -> None:
    """Describe a group with a member, and check that changes to it are rejected."""
    def ask(*arguments, **options):
        return tools.ask("kafka-consumer-groups", *arguments, "--group", group, **options)

    reader = tools.start("kafka-console-consumer", "--topic", topic, "--group", group,
                         "--from-beginning")
    try:
        flows.wait_for("a stable group of one", lambda: re.search(
            rf"{group}\s.*range\s+Stable\s+1", ask("--describe", "--state")), 60)
        seen(rf"{group}\s+console-consumer-\S+\s.*{topic}:0,1,2",
             ask("--describe", "--members", "--verbose"))
        seen(rf"^{group}\s+{topic}\s+1\s.*console-consumer-", ask("--describe"))
        seen("GroupNotEmptyException", ask("--delete", fails=None))
        seen("only be reset if the group .* is inactive, but the current state is Stable",
             ask("--reset-offsets", "--topic", topic, "--to-earliest", "--execute", fails=None))
    finally:
        reader.send_signal(signal.SIGTERM)
        reader.wait(30)
    flows.wait_for("an empty group", lambda: re.search(
        rf"{group}\s.*Empty\s+0", ask("--describe", "--state")), 30)


def resets(tools: Tools, topic: str, group: str) -> None:
    """Test every way to reset offsets, and check the result in the group's description."""
    def reset(*arguments):
        told = tools.ask("kafka-consumer-groups", "--reset-offsets", "--group", group, *arguments)
        return {int(row[0]): int(row[1]) for row in re.findall(
            rf"^{group}\s+{topic}\s+(\d+)\s+(\d+)\s*$", told, re.MULTILINE)}

    ends = {partition: int(end) for partition, (_, end) in group_rows(tools.ask(
        "kafka-consumer-groups", "--describe", "--group", group), topic).items()}
    assert sorted(ends) == [0, 1, 2] and min(ends.values()) > 9, ends
    every = ("--topic", topic, "--execute")
    first = dict.fromkeys(ends, 0)
    assert reset("--topic", topic, "--to-earliest", "--dry-run") == first
    assert reset(*every, "--to-earliest") == first
    assert reset("--topic", f"{topic}:1", "--to-offset", 5, "--execute") == {1: 5}
    assert reset(*every, "--shift-by", 2) == {0: 2, 1: 7, 2: 2}
    assert reset(*every, "--to-current") == {0: 2, 1: 7, 2: 2}
    assert reset(*every, "--to-datetime", "2020-01-01T00:00:00.000") == first
    assert reset(*every, "--by-duration", "PT1H") == first
    assert reset("--all-topics", "--to-latest", "--execute") == ends
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "offsets.csv"
        table.write_text(f'"{topic}",2,9\n')
        assert reset("--from-file", table, "--execute") == {2: 9}
    rows = group_rows(tools.ask("kafka-consumer-groups", "--describe", "--group", group), topic)
    assert rows[2] == ("9", str(ends[2])) and rows[0] == (str(ends[0]),) * 2, rows


def consumer_groups(tools: Tools, topic: str) -> str:
    tools.fill_every_partition(topic)
    group = f"{topic}-group"
    members(tools, topic, group)

    def ask(*arguments, **options):
        return tools.ask("kafka-consumer-groups", *arguments, **options)

    assert group in ask("--list").splitlines()
    seen(rf"^{group}\s+Classic\s+Empty", ask("--list", "--state", "--type"))
    assert group in ask("--list", "--state", "Empty")
    assert group not in ask("--list", "--state", "Stable")
    assert group in ask("--describe", "--all-groups", "--offsets")
    resets(tools, topic, group)
    ask("--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert sorted(group_rows(ask("--describe", "--group", group), topic)) == [1, 2]
    ask("--validate-regex", "a.*")
    ask("--delete", "--group", group)
    assert group not in ask("--list").splitlines()
    seen("GroupIdNotFoundException", ask("--delete", "--group", group, fails=None))
    return "list, describe (offsets, members, state), all resets, delete-offsets, delete"


def all_groups(tools: Tools, topic: str) -> str:
    tools.fill(topic, 10)
    group = f"{topic}-group"
    tools.ask("kafka-consumer-groups", "--reset-offsets", "--group", group, "--topic", topic,
              "--to-latest", "--execute")
    seen(rf"^{group}\s+\S+", tools.ask("kafka-groups", "--list"))
    return "list"


def get_offsets(tools: Tools, topic: str) -> str:
    before_ms = int(time.time() * 1000)
    tools.fill(topic, 100)
    for name, offset in (("earliest", 0), ("latest", 100), ("-1", 100), ("-2", 0),
                         (str(before_ms), 0)):
        assert tools.end(topic, name) == offset, name
    assert 0 <= tools.end(topic, "max-timestamp") < 100
    assert topic in tools.ask("kafka-get-offsets", "--topic-partitions", f"{topic}:0-1")
    return "earliest, latest, max-timestamp, by time"


def delete_records(tools: Tools, topic: str) -> str:
    tools.fill(topic, 100)
    with tempfile.TemporaryDirectory() as folder:
        row = {"topic": topic, "partition": 0, "offset": 40}
        told = tools.ask("kafka-delete-records", "--offset-json-file",
                         plan_file(folder, partitions=[row]))
    assert f"partition: {topic}-0\tlow_watermark: 40" in told
    assert tools.end(topic, "earliest") == 40
    return "the log start offset moves"


def log_dirs(tools: Tools, topic: str) -> str:
    tools.fill(topic, 100)
    told = tools.ask("kafka-log-dirs", "--describe", "--topic-list", topic)
    size = seen(rf'"partition":"{topic}-0","size":(\d+),"offsetLag":0,"isFuture":false', told)
    assert int(size[1]) > 61
    return "the size of a partition"


def console(tools: Tools, topic: str) -> str:
    """Send keys, headers and nulls through both console tools, with and without a group."""
    lines = [f"h:{number}\tkey{number}\tvalue {number}" for number in range(200)]
    lines.append("h:0\tkey200\tNULL")
    tools.ask("kafka-console-producer", "--topic", topic, "--reader-property", "parse.key=true",
              "--reader-property", "parse.headers=true", "--reader-property", "null.marker=NULL",
              "--compression-codec", "zstd", text="\n".join(lines) + "\n")
    wanted = [line.replace("NULL", "null") for line in lines]
    shown = ("--topic", topic, "--formatter-property", "print.key=true", "--formatter-property",
             "print.headers=true", "--timeout-ms", 30000, "--max-messages", 201)
    for how in (("--partition", 0, "--offset", "earliest"), ("--from-beginning",),
                ("--group", f"{topic}-group", "--from-beginning")):
        told = tools.ask("kafka-console-consumer", *shown, *how)
        assert [line for line in told.splitlines() if line.startswith("h:")] == wanted, how
    told = tools.ask("kafka-console-consumer", "--topic", topic, "--partition", 0, "--offset",
                     150, "--max-messages", 3)
    assert "value 150\nvalue 151\nvalue 152" in told
    return "keys, headers, nulls; by partition and offset, from the beginning, in a group"


def producer_perf(tools: Tools, topic: str) -> str:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        told = tools.fill(topic, RECORDS, "--command-property", f"compression.type={codec}")
        seen(f"^{RECORDS} records sent", told)
    assert tools.end(topic) == RECORDS * len(codecs)
    return " ".join(codecs)


def consumer_perf(tools: Tools, topic: str) -> str:
    tools.fill(topic)
    told = tools.ask("kafka-consumer-perf-test", "--topic", topic, "--num-records", RECORDS,
                     "--group", f"{topic}-group", "--timeout", 30000)
    seen(rf", {RECORDS}, ", told)
    return f"{RECORDS:,} records in a group"


def events(told: str) -> list[dict]:
    return [json.loads(line) for line in told.splitlines() if line.startswith("{")]


def verifiable_producer(tools: Tools, topic: str) -> str:
    told = events(tools.ask("kafka-verifiable-producer", "--topic", topic, "--max-messages", 500,
                            "--acks", -1))
    sent = [one for one in told if one["name"] == "producer_send_success"]
    assert sorted(int(one["value"]) for one in sent) == list(range(500))
    assert [one["offset"] for one in sent] == list(range(500))
    assert told[-1]["acked"] == 500, told[-1]
    return "500 acknowledged in order"


def verifiable_consumer(tools: Tools, topic: str) -> str:
    """Kill one of two members: the other takes over its partitions and reads the rest."""
    tools.fill(topic, 500)
    group = ("--topic", topic, "--group-id", f"{topic}-group", "--session-timeout", 6000,
             "--reset-policy", "earliest")
    with tempfile.TemporaryDirectory() as folder:
        files = [open(Path(folder) / str(number), "w+") for number in range(2)]
        first, second = (tools.start("kafka-verifiable-consumer", *group, output=file)
                         for file in files)

        def told(number: int, name: str) -> list[dict]:
            text = (Path(folder) / str(number)).read_text()
            return [one for one in events(text.rpartition("\n")[0]) if one["name"] == name]

        def share(number: int) -> int:
            assigned = told(number, "partitions_assigned")
            return len(assigned[-1]["partitions"]) if assigned else 0

        try:
            flows.wait_for("a partition each and one more", lambda: share(0) + share(1) == 4
                           and min(share(0), share(1)) == 2)
            second.kill()
            flows.wait_for("all partitions at the survivor", lambda: share(0) == 4)
            tools.fill(topic, 500)
            flows.wait_for("every record read", lambda: sum(
                one["count"] for number in range(2)
                for one in told(number, "records_consumed")) >= 1000)
            flows.wait_for("commits", lambda: any(
                one["success"] for one in told(0, "offsets_committed")))
            first.send_signal(signal.SIGTERM)
            first.wait(30)
            assert told(0, "shutdown_complete")
        finally:
            for process in (first, second):
                process.kill()
                process.wait()
            for file in files:
                file.close()
    return "one of two members killed, the other takes over"


def latency(tools: Tools, topic: str) -> str:
    told = tools.run("kafka-e2e-latency", "--bootstrap-server", tools.bootstrap, "--topic", topic,
                     "--num-records", 200, "--producer-acks", "all", "--record-size", 100)
    seen(r"Avg latency: [\d.]+ ms", told)
    seen(r"50th = \d+, 99th = \d+, 99.9th = \d+", told)
    return "200 records there and back"


def quorum(tools: Tools, topic: str) -> str:
    status = tools.ask("kafka-metadata-quorum", "describe", "--status")
    seen(r"LeaderId:\s+1", status)
    seen(r"MaxFollowerLag:\s+0", status)
    told = tools.ask("kafka-metadata-quorum", "describe", "--replication")
    seen(r"^1\s+\S+\s+\d+\s+0\s+.*Leader\s*$", told)
    return "status, replication"


def features(tools: Tools, topic: str) -> str:
    seen(r"Feature: metadata\.version\s+SupportedMinVersion: \S+\s+SupportedMaxVersion: \S+\s+"
         r"FinalizedVersionLevel: \S+", tools.ask("kafka-features", "describe"))
    return "describe"


def api_versions(tools: Tools, topic: str) -> str:
    told = tools.ask("kafka-broker-api-versions")
    for line in (r"Produce\(0\): \d+ to \d+ \[usable: \d+\]", r"Fetch\(1\): ",
                 r"JoinGroup\(11\): 0 to 9", r"ApiVersions\(18\): "):
        seen(line, told)
    return "version ranges"


def cluster(tools: Tools, topic: str) -> str:
    seen(r"^Cluster ID: \S{22}$",
         tools.run("kafka-cluster", "cluster-id", "--bootstrap-server", tools.bootstrap))
    told = tools.run("kafka-cluster", "list-endpoints", "--bootstrap-server", tools.bootstrap)
    seen(rf"^1\s.*{tools.bootstrap.partition(':')[2]}", told)
    return "cluster-id, list-endpoints"


def election(tools: Tools, topic: str) -> str:
    told = tools.ask("kafka-leader-election", "--election-type", "preferred", "--topic", topic,
                     "--partition", 0)
    assert f"Valid replica already elected for partitions {topic}-0" in told
    return "nothing to elect on one broker"


def reassign(tools: Tools, topic: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        row = {"topic": topic, "partition": 0, "replicas": [1]}
        plan = plan_file(folder, partitions=[row])
        ask = "kafka-reassign-partitions"
        tools.ask(ask, "--reassignment-json-file", plan, "--execute")
        told = tools.ask(ask, "--reassignment-json-file", plan, "--verify")
        assert f"Reassignment of partition {topic}-0 is completed" in told
        assert "No partition reassignments found" in tools.ask(ask, "--list")
        wish = plan_file(folder, topics=[{"topic": topic}])
        told = tools.ask(ask, "--generate", "--topics-to-move-json-file", wish, "--broker-list", 1)
        seen(rf'"topic":"{topic}","partition":0,"replicas":\[1\]', told)
    return "generate, execute, verify, list; nothing to move on one broker"


def verification(tools: Tools, topic: str) -> str:
    """Run the tool until its first report, because it never ends by itself."""
    tools.fill(topic, 100)
    watcher = subprocess.Popen(
        tools.command("kafka-replica-verification", "--broker-list", tools.bootstrap,
                      "--topics-include", topic, "--report-interval-ms", 500),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    told = ""
    try:
        for line in watcher.stdout:
            told += line
            if "max lag is 0" in line:
                return "a lag of 0"
    finally:
        watcher.kill()
        watcher.wait()
    raise AssertionError(f"it ended: {told[:200]}")


def transactions(tools: Tools, topic: str) -> str:
    tools.fill(topic, 100)
    told = tools.ask("kafka-transactions", "describe-producers", "--topic", topic,
                     "--partition", 0)
    seen(r"^\d+\s+0\s+", told)
    return "describe-producers"


def client_metrics(tools: Tools, topic: str) -> str:
    name = f"{topic}-subscription"
    tools.ask("kafka-client-metrics", "--alter", "--name", name, "--metrics", "org.apache.kafka.",
              "--interval", 1000)
    assert name in tools.ask("kafka-client-metrics", "--list").splitlines()
    assert "interval.ms=1000" in tools.ask("kafka-client-metrics", "--describe", "--name", name)
    tools.ask("kafka-client-metrics", "--delete", "--name", name)
    return "alter, list, describe, delete"


def streams_reset(tools: Tools, topic: str) -> str:
    """Reset the offsets of an application that read `topic`."""
    tools.fill(topic, 100)
    application = f"{topic}-app"
    tools.ask("kafka-consumer-groups", "--reset-offsets", "--group", application, "--topic", topic,
              "--to-latest", "--execute")
    tools.ask("kafka-streams-application-reset", "--application-id", application,
              "--input-topics", topic, "--force")
    told = tools.ask("kafka-consumer-groups", "--describe", "--group", application)
    assert group_rows(told, topic) == {0: ("0", "100")}, told
    return "an application's offsets go back to the start"


FLOWS = {
    "kafka-topics": topics, "kafka-configs": configs, "kafka-consumer-groups": consumer_groups,
    "kafka-groups": all_groups, "kafka-get-offsets": get_offsets,
    "kafka-delete-records": delete_records, "kafka-log-dirs": log_dirs,
    "kafka-console-producer": console, "kafka-console-consumer": console,
    "kafka-producer-perf-test": producer_perf, "kafka-consumer-perf-test": consumer_perf,
    "kafka-verifiable-producer": verifiable_producer,
    "kafka-verifiable-consumer": verifiable_consumer, "kafka-e2e-latency": latency,
    "kafka-metadata-quorum": quorum, "kafka-features": features,
    "kafka-broker-api-versions": api_versions, "kafka-cluster": cluster,
    "kafka-leader-election": election, "kafka-reassign-partitions": reassign,
    "kafka-replica-verification": verification, "kafka-transactions": transactions,
    "kafka-client-metrics": client_metrics, "kafka-streams-application-reset": streams_reset,
    **streams_tools.FLOWS,
    **secured_tools.FLOWS,
}
assert FLOWS.keys() <= CLASSES.keys(), FLOWS.keys() - CLASSES.keys()

if __name__ == "__main__":
    flows.FLOWS = FLOWS
    flows.main(Tools)
