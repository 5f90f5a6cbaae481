"""Administration with common tools and clients: Java's, librdkafka's, kafka-python's."""

import re

import pytest

from bench.kafka import kafka_version
from tests.wire import raw
from tests.wire.talk import append, create_topic, unique

pytestmark = pytest.mark.timeout(300)
java = pytest.mark.kafka
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


def _tool(target, name: str, *arguments, fails: bool = False, **options) -> str:
    from bench.kafka import run_tool

    done = run_tool(name, "--bootstrap-server", target.bootstrap, *arguments, wait_s=120,
                    heap="128m", **options)
    told = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, told
    return told


def _records(count: int) -> bytes:
    return raw.batch([raw.record(b"k", b"v", offset_delta=number) for number in range(count)])


@java
def test_kafka_topics_adds_partitions_and_describes_settings(target):
    topic = unique("tool-topic")
    create_topic(target.port, topic, 2, retention_ms=5000)
    _tool(target, TOPICS, "--alter", "--topic", topic, "--partitions", 5)
    told = _tool(target, TOPICS, "--describe", "--topic", topic)
    assert re.search(r"PartitionCount: 5\s+ReplicationFactor: 1\s+Configs: .*retention\.ms=5000",
                     told)
    refused = _tool(target, TOPICS, "--alter", "--topic", topic, "--partitions", 4, fails=True)
    assert "currently has 5 partition(s); 4 would not be an increase" in refused


@java
def test_kafka_configs_alters_and_describes_a_topic(target):
    topic = unique("tool-config")
    create_topic(target.port, topic)
    where = ("--entity-type", "topics", "--entity-name", topic)
    _tool(target, CONFIGS, "--alter", *where, "--add-config",
          "retention.ms=12345,cleanup.policy=[compact,delete]")
    told = _tool(target, CONFIGS, "--describe", *where)
    assert "retention.ms=12345 sensitive=false" in told
    assert "cleanup.policy=compact,delete" in told
    every = _tool(target, CONFIGS, "--describe", "--all", *where)
    assert re.search(r"segment\.bytes=1073741824 .*DEFAULT_CONFIG:log\.segment\.bytes=1073741824",
                     every)
    _tool(target, CONFIGS, "--alter", *where, "--delete-config", "retention.ms")
    assert "retention.ms" not in _tool(target, CONFIGS, "--describe", *where)
    refused = _tool(target, CONFIGS, "--alter", *where, "--add-config", "retention.ms=x",
                    fails=True)
    assert "Invalid value x for configuration retention.ms" in refused


@java
def test_kafka_configs_alters_brokers_loggers_groups_and_subscriptions(target):
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    _tool(target, CONFIGS, "--alter", *broker, "--add-config", "log.cleaner.io.buffer.size=600000")
    told = _tool(target, CONFIGS, "--describe", *broker)
    assert "log.cleaner.io.buffer.size=600000" in told and "DYNAMIC_BROKER_CONFIG" in told
    _tool(target, CONFIGS, "--alter", *broker, "--delete-config", "log.cleaner.io.buffer.size")
    cluster = ("--entity-type", "brokers", "--entity-default")
    _tool(target, CONFIGS, "--alter", *cluster, "--add-config", "log.roll.ms=7000000")
    assert "log.roll.ms=7000000" in _tool(target, CONFIGS, "--describe", *cluster)
    _tool(target, CONFIGS, "--alter", *cluster, "--delete-config", "log.roll.ms")
    assert "node.id=1" in _tool(target, CONFIGS, "--describe", "--all", *broker)
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    _tool(target, CONFIGS, "--alter", *loggers, "--add-config", "root=INFO")
    assert "root=INFO" in _tool(target, CONFIGS, "--describe", *loggers)
    group = ("--entity-type", "groups", "--entity-name", unique("tool-group"))
    _tool(target, CONFIGS, "--alter", *group, "--add-config", "consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in _tool(target, CONFIGS, "--describe", *group)
    metrics = ("--entity-type", "client-metrics", "--entity-name", unique("tool-metrics"))
    _tool(target, CONFIGS, "--alter", *metrics, "--add-config", "interval.ms=1000")
    assert "interval.ms=1000" in _tool(target, CONFIGS, "--describe", *metrics)


@java
def test_kafka_client_metrics_alters_lists_and_describes(target):
    name = unique("tool-subscription")
    _tool(target, METRICS, "--alter", "--name", name, "--metrics", "org.apache.kafka.",
          "--interval", 1000)
    assert name in _tool(target, METRICS, "--list").splitlines()
    assert "interval.ms=1000" in _tool(target, METRICS, "--describe", "--name", name)
    _tool(target, METRICS, "--delete", "--name", name)


@java
def test_kafka_delete_records_advances_the_log_start(target, tmp_path):
    topic = unique("tool-trimmed")
    create_topic(target.port, topic)
    append(target.port, topic, _records(10))
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": '
                    f'[{{"topic": "{topic}", "partition": 0, "offset": 4}}]}}')
    told = _tool(target, DELETE_RECORDS, "--offset-json-file", plan)
    assert f"partition: {topic}-0\tlow_watermark: 4" in told
    assert f"{topic}:0:4" in _tool(target, OFFSETS, "--topic", topic, "--time", "earliest")


@java
def test_kafka_log_dirs_reports_the_size_of_each_partition(target):
    topic = unique("tool-stored")
    create_topic(target.port, topic)
    append(target.port, topic, _records(10))
    told = _tool(target, LOG_DIRS, "--describe", "--topic-list", topic)
    found = re.search(rf'"partition":"{topic}-0","size":(\d+),"offsetLag":0,"isFuture":false', told)
    assert found and int(found[1]) > 61


@java
def test_kafka_metadata_quorum_describes_a_single_node(target):
    status = _tool(target, QUORUM, "describe", "--status")
    assert re.search(r"LeaderId:\s+1", status) and re.search(r"MaxFollowerLag:\s+0", status)
    told = _tool(target, QUORUM, "describe", "--replication")
    assert re.search(r"^1\s+\S+\s+\d+\s+0\s+.*Leader\s*$", told, re.MULTILINE)


@java
def test_kafka_features_describes_the_metadata_version(target):
    told = _tool(target, FEATURES, "describe")
    assert re.search(r"Feature: metadata\.version\s+SupportedMinVersion: 3\.3-IV3\s+"
                     # Kafka 4.3's tool has no name for the level of 4.4.
                     r"SupportedMaxVersion: (?:4\.4-IV2|UNKNOWN 33)\s+"
                     r"FinalizedVersionLevel: (?:4\.4-IV2|UNKNOWN 33)", told), told


@java
def test_kafka_features_upgrades_to_a_release(target):
    release = ".".join(kafka_version().split(".")[:2])
    told = _tool(target, FEATURES, "upgrade", "--release-version", release)
    assert re.search(r"kraft\.version was upgraded to ", told), told


@java
def test_kafka_leader_election_and_reassignment_without_changes(target, tmp_path):
    topic = unique("tool-led")
    create_topic(target.port, topic)
    told = _tool(target, ELECTION, "--election-type", "preferred", "--topic", topic,
                 "--partition", 0)
    assert f"Valid replica already elected for partitions {topic}-0" in told
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": '
                    f'[{{"topic": "{topic}", "partition": 0, "replicas": [1]}}]}}')
    _tool(target, REASSIGN, "--reassignment-json-file", plan, "--execute")
    told = _tool(target, REASSIGN, "--reassignment-json-file", plan, "--verify")
    assert f"Reassignment of partition {topic}-0 is completed" in told
    assert "No partition reassignments found" in _tool(target, REASSIGN, "--list")


@java
def test_kafka_transactions_describes_producers(target):
    topic = unique("tool-producers")
    create_topic(target.port, topic)
    append(target.port, topic, raw.batch([raw.record()], producer_id=4711, producer_epoch=2,
                                         base_sequence=0))
    told = _tool(target, TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", 0)
    assert re.search(r"^4711\s+2\s+", told, re.MULTILINE)


def test_admin_client_of_confluent_kafka_changes_topics_settings_and_records(target):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
    )

    topic = unique("rd-admin")
    create_topic(target.port, topic)
    append(target.port, topic, _records(10))
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    assert len(admin.list_topics(topic, timeout=20).topics[topic].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[
        ConfigEntry("retention.ms", "4711",
                    incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact",
                    incremental_operation=AlterConfigOpType.APPEND)])
    admin.incremental_alter_configs([resource])[resource].result(20)
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    found = admin.describe_configs([asked])[asked].result(20)
    assert found["retention.ms"].value == "4711"
    assert found["cleanup.policy"].value == "delete,compact"
    broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    assert admin.describe_configs([broker])[broker].result(20)["node.id"].value == "1"
    partition = TopicPartition(topic, 0, 4)
    assert admin.delete_records([partition])[partition].result(20).low_watermark == 4


def test_kafka_pythons_admin_client(target):
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions

    topic = unique("py-admin")
    create_topic(target.port, topic)
    admin = KafkaAdminClient(bootstrap_servers=target.bootstrap)
    try:
        admin.create_partitions({topic: NewPartitions(3)})
        assert len(admin.describe_topics([topic])[0]["partitions"]) == 3
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic,
                                            configs={"retention.ms": "4711"})])
        told = str(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        assert "retention.ms" in told and "4711" in told
        assert "node.id" in str(admin.describe_configs(
            [ConfigResource(ConfigResourceType.BROKER, "1")], config_filter="all"))
    finally:
        admin.close()


@java
def test_kafka_configs_alters_and_describes_client_quotas(target):
    user, client = unique("tool-user"), unique("tool-client")
    for where, config, shown in (
            (("--entity-type", "users", "--entity-name", user), "producer_byte_rate=1024",
             f"Quota configs for user-principal '{user}' are producer_byte_rate=1024.0"),
            (("--entity-type", "clients", "--entity-name", client), "consumer_byte_rate=2048",
             f"Quota configs for client-id '{client}' are consumer_byte_rate=2048.0"),
            (("--entity-type", "users", "--entity-name", user, "--entity-type", "clients",
              "--entity-default"), "request_percentage=12.5",
             f"Quota configs for user-principal '{user}', the default client-id are "
             "request_percentage=12.5"),
            (("--entity-type", "ips", "--entity-name", "127.0.0.9"), "connection_creation_rate=50",
             "Quota configs for ip '127.0.0.9' are connection_creation_rate=50.0")):
        _tool(target, CONFIGS, "--alter", *where, "--add-config", config)
        assert shown in _tool(target, CONFIGS, "--describe", *where)
        _tool(target, CONFIGS, "--alter", *where, "--delete-config", config.partition("=")[0])
        assert config.partition("=")[0] not in _tool(target, CONFIGS, "--describe", *where)
    refused = _tool(target, CONFIGS, "--alter", "--entity-type", "users", "--entity-name", user,
                    "--add-config", "producer_byte_rate=-5", fails=True)
    assert "Quota producer_byte_rate must be greater than 0" in refused
