"""Topics, settings, offsets and the cluster, on ours and with --against kafka on Apache Kafka."""

import time

import pytest
from confluent_kafka.admin import AdminClient

from pylog.client.errors import error
from pylog.client.network.cluster import Cluster
from pylog.protocol.errors import ErrorCode
from tests.tools.support import run, topic_of
from tests.wire import raw
from tests.wire.talk import append, unique

NOW_MS = 1_767_225_600_000


def records(count: int, timestamp: int = NOW_MS) -> bytes:
    return raw.batch([raw.record(b"k", b"v", offset_delta=number) for number in range(count)],
                     base_timestamp=timestamp, max_timestamp=timestamp)


def described(target, topic: str) -> dict:
    """Wait until every partition of the topic has a leader: Kafka responds to CreateTopics before.
    """
    end = time.monotonic() + 30
    while True:
        try:
            return run("topics", "describe", topic, "--json", broker=target).json[0]
        except AssertionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def test_a_topic_is_created_described_altered_and_deleted(target):
    topic = unique("tool")
    assert run("topics", "create", topic, "-p", 2, "-s", "retention.ms=77777777777",
               broker=target).out == f"{topic} created\n"
    told = described(target, topic)
    assert told["partition_count"] == 2 and told["configs"]["retention.ms"] == "77777777777"
    assert [part["partition"] for part in told["partitions"]] == [0, 1]
    assert all(part["leader"] == part["replicas"][0] for part in told["partitions"])
    run("topics", "alter", topic, "-p", 3, "-s", "segment.ms=1234567", "-u", "retention.ms",
        broker=target)
    told = described(target, topic)
    assert told["partition_count"] == 3
    assert told["configs"]["segment.ms"] == "1234567" and "retention.ms" not in told["configs"]
    assert run("topics", "delete", topic, "--yes", broker=target).out == f"{topic} deleted\n"
    ended = run("topics", "delete", topic, "--yes", broker=target, fails=True)
    assert f"there is no topic '{topic}'" in ended.err
    assert run("topics", "delete", topic, "--yes", "--if-exists", broker=target).code == 0


def test_existing_topic_is_an_error_unless_allowed(target):
    topic = topic_of(target)
    assert "TOPIC_ALREADY_EXISTS" in run("topics", "create", topic, broker=target, fails=True).err
    assert run("topics", "create", topic, "--if-not-exists", broker=target).code == 0


def test_a_dry_run_creates_nothing(target):
    topic = unique("tool")
    assert "would be created" in run("topics", "create", topic, "--dry-run", broker=target).out
    assert run("topics", "list", topic, "--json", broker=target).json == []


def test_similar_names_of_topics_and_settings_are_suggested(target):
    topic = topic_of(target)
    near = f"nearest valid name: {topic}"
    assert near in run("topics", "describe", topic.replace("tool", "tol"), broker=target,
                       fails=True).err
    assert near in run("offsets", topic.replace("tool", "tol"), broker=target, fails=True).err
    for words in (["topics", "create", unique("tool"), "-s", "retention.mz=1"],
                  ["topics", "alter", topic, "-s", "retention.mz=1"],
                  ["configs", "set", "topic", topic, "retention.mz=1"],
                  ["configs", "describe", "topic", topic, "retention.mz"]):
        assert "nearest valid name: retention.ms" in run(*words, broker=target, fails=True).err


def test_tables_are_plain_without_a_terminal(target):
    topic = topic_of(target)
    append(target.port, topic, records(3), partition=1)
    assert run("topics", "list", topic, broker=target).out == (
        f"{'TOPIC':<{len(topic)}}  PARTITIONS  REPLICAS\n{topic}           2         1\n")
    node = run("cluster", "--json", broker=target).json["brokers"][0]["broker"]
    assert run("offsets", topic, broker=target).out == (
        f"{'TOPIC':<{len(topic)}}  PARTITION  START  END  RECORDS\n"
        f"{topic}          0      0    0        0\n{topic}          1      0    3        3\n")
    rows = run("topics", "partitions", topic, "--json", broker=target).json
    assert rows[1] == {"topic": topic, "partition": 1, "leader": node, "replicas": [node],
                       "isr": [node], "offline": [], "start_offset": 0, "end_offset": 3,
                       "records": 3, "bytes": rows[1]["bytes"]} and rows[1]["bytes"] > 0
    long = run("topics", "list", topic, "-l", "--json", broker=target).json[0]
    assert long["records"] == 3 and long["bytes"] == rows[1]["bytes"]


def test_offsets_of_a_time_are_found(target):
    topic = topic_of(target, 1)
    append(target.port, topic, records(3, NOW_MS))
    append(target.port, topic, records(2, NOW_MS + 60_000))
    for when, offset, timestamp in (("2026-01-01T00:00:00Z", 0, NOW_MS),
                                    ("2026-01-01T00:00:30+00:00", 3, NOW_MS + 60_000),
                                    (str(NOW_MS // 1000), 0, NOW_MS), ("-1s", 5, None)):
        row = run("offsets", topic, "--at", when, "--json", broker=target).json[0]
        assert (row["offset"], row["timestamp"]) == (offset, timestamp), when
    rows = run("offsets", "--at", "2026-01-01T00:00:30Z", "--json", broker=target).json
    assert [row["offset"] for row in rows if row["topic"] == topic] == [3]
    assert not any(row["topic"].startswith("__") for row in rows)
    row = run("offsets", topic, "--latest-time", "--json", broker=target).json[0]
    assert row["timestamp"] == NOW_MS + 60_000
    assert "2026-01-01T00:01:00.000Z" in run("offsets", topic, "--at", "2026-01-01T00:00:30Z",
                                              broker=target).out


def test_settings_are_described_set_and_reset(target):
    topic = topic_of(target)
    told = run("configs", "describe", "topic", topic, "--all", "--json", broker=target).json
    assert {"name": "retention.ms", "value": "604800000"}.items() <= next(
        row for row in told if row["name"] == "retention.ms").items()
    assert "retention.ms=5 set" in run("configs", "set", "topics", topic, "retention.ms=5",
                                       broker=target).out
    told = run("configs", "describe", "topic", topic, "--json", broker=target).json
    assert ("retention.ms", "5", "topic") in [(row["name"], row["value"], row["source"])
                                              for row in told]
    run("configs", "delete", "topic", topic, "retention.ms", broker=target)
    assert "604800000" in run("configs", "describe", "topic", topic, "retention.ms",
                              broker=target).out
    assert "INVALID_CONFIG" in run("configs", "set", "topic", topic, "retention.ms=x",
                                   broker=target, fails=True).err


def test_secret_is_not_shown_after_setting_it(brokerd):
    name = "listener.name.plaintext.ssl.keystore.password"
    for more in ((), ("--json",)):
        ended = run("configs", "set", "broker", "1", f"{name}=s3cret", "--dry-run", *more,
                    broker=brokerd)
        assert name in ended.out and "s3cret" not in ended.out


def test_settings_of_brokers_and_loggers_are_described(target):
    node = run("cluster", "--json", broker=target).json["brokers"][0]["broker"]
    told = run("configs", "describe", "broker", node, "--all", "--json", broker=target).json
    assert "num.network.threads" in [row["name"] for row in told]
    loggers = run("configs", "describe", "logger", node, "--all", "--json", broker=target).json
    assert "root" in [row["name"] for row in loggers]
    assert "there is no broker '99'" in run("configs", "describe", "broker", "99", broker=target,
                                            fails=True).err


def test_cluster_is_described_with_its_disks(target):
    told = run("cluster", "--json", broker=target).json
    # Other tests create topics on the same Kafka, and let its disks fail.
    known = AdminClient({"bootstrap.servers": target.bootstrap}).list_topics(timeout=10).topics
    assert told["offline_partitions"] == sum(
        part.leader < 0 for topic in known.values() for part in topic.partitions.values())
    assert [row["status"] for row in told["brokers"]] == ["ok"]
    assert told["log_dirs"] and told["log_dirs"][0]["error"] is None
    assert f"cluster {told['cluster_id']}\n" in run("cluster", broker=target).out


@pytest.mark.kafka
def test_topics_and_settings_work_on_apache_kafka(kafka):
    for test in (test_a_topic_is_created_described_altered_and_deleted,
                 test_similar_names_of_topics_and_settings_are_suggested,
                 test_tables_are_plain_without_a_terminal, test_offsets_of_a_time_are_found,
                 test_cluster_is_described_with_its_disks):
        test(kafka)


def test_broker_without_a_controller_is_retried(brokerd, monkeypatch):
    tries, controller = [], Cluster.controller

    async def late(self):
        tries.append(self)
        if len(tries) == 1:
            raise error(ErrorCode.NOT_CONTROLLER)
        return await controller(self)

    monkeypatch.setattr(Cluster, "controller", late)
    topic = topic_of(brokerd)
    assert run("topics", "describe", topic, "--json", broker=brokerd).json[0]["topic"] == topic
    assert len(tries) >= 2
