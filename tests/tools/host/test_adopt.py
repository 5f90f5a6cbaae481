"""`brokerd adopt`, and the steps of docs/migrate/kafka-node.md from Kafka to brokerd and back."""

import json
import os
import time
from pathlib import Path

import pytest

from pylog import cli
from pylog._native.records import batch
from pylog.config import Settings
from pylog.protocol import messages
from pylog.testing import certificates
from pylog.tools.host import adopt
from tests.fixtures.brokers import Brokerd, Kafka
from tests.log.test_manager import append
from tests.metadata.node import Node
from tests.peer.secured import CA


def looked(*paths, execute=False, **texts):
    settings = Settings({"log.dirs": ",".join(map(str, paths)), **{
        name.replace("_", "."): value for name, value in texts.items()}})
    return adopt.adopt(settings, execute)


def failures(found):
    return [f"{finding.detail} {finding.advice}" for finding in found if finding.status == "fail"]


@pytest.fixture
def stopped(tmp_path):
    """Create a directory in the state after a stop."""
    node = Node(tmp_path / "data")
    node.create("a", partitions=2)
    append(node, "a")
    node.stop()
    return tmp_path / "data"


def test_stopped_kafka_directory_can_be_adopted(stopped):
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    found = looked(stopped)
    assert adopt.is_adoptable(found)
    assert "1 topic, 2 partitions" in adopt.rendered(found, False)
    assert json.loads(adopt.rendered(found, True))["adoptable"]
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


def test_the_command_ends_with_the_verdict(stopped, capsys):
    assert cli.brokerd(["adopt", "--override", f"log.dirs={stopped}"]) == 0
    assert "opens these directories as they are" in capsys.readouterr().out
    assert cli.brokerd(["adopt", "--override", f"log.dirs={stopped}",
                        "--override", "node.id=7"]) == 1
    assert "set node.id=1" in capsys.readouterr().out


def test_all_settings_of_a_secured_kafka_are_checked(stopped, tmp_path, capsys):
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={stopped}\nnode.id=1\n"
                    "listeners=SASL_SSL://127.0.0.1:0\n"
                    "ssl.keystore.location=/nowhere/keystore.jks\nssl.keystore.password=x\n"
                    "ssl.client.auth=perhaps\n"
                    "zookeeper.connect=z:2181\n"
                    "authorizer.class.name=com.example.Rules\n")
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    assert cli.brokerd(["adopt", str(file), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    refused = {row["subject"] for row in told["findings"] if row["status"] == "fail"}
    assert {"ssl.client.auth", "zookeeper.connect", "authorizer.class.name"} <= refused
    listeners = [row["detail"] for row in told["findings"] if row["check"] == "listener"]
    assert listeners[0].startswith("ssl.keystore.location: /nowhere/keystore.jks cannot be read")
    assert "GSSAPI" in listeners[1] and len(listeners) == 2
    # The directories were checked nevertheless.
    assert any(row["check"] == "directory" and row["status"] == "ok" for row in told["findings"])
    assert cli.brokerd(["adopt", str(file), "--execute"]) == 1
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


def test_unusable_listeners_are_reported(stopped, tmp_path):
    good = CA.issue()
    own = certificates.write(tmp_path, "own.pem", good.chain + good.key)
    texts = {
        "log.dirs": str(stopped), "listeners": "SSL://:0,SASL_SSL://:0,SASL_PLAINTEXT://:0",
        "ssl.keystore.type": "PEM", "ssl.keystore.location": own,
        "listener.name.ssl.ssl.keystore.location": certificates.write(
            tmp_path, "broken.pem", b"nothing"),
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "DIGEST-MD5"}
    found = [row for row in adopt.adopt(Settings(texts), False) if row.check == "listener"]
    assert [row.subject for row in found] == ["SSL", "SASL_SSL", "SASL_PLAINTEXT"]
    assert "broken.pem" in found[0].detail and "plain.sasl.jaas.config" in found[1].detail
    assert "DIGEST-MD5" in found[2].detail and all(row.status == "fail" for row in found)


def test_indistinguishable_directories_are_rejected(stopped, tmp_path):
    assert "holds no meta.properties" in failures(looked(tmp_path))[0]
    node = Node(tmp_path / "other")
    node.stop()
    assert "different clusters" in " ".join(failures(looked(stopped, tmp_path / "other")))


def test_a_directory_in_use_is_rejected(tmp_path):
    node = Node(tmp_path)
    assert "is held" in failures(looked(tmp_path))[0]
    node.stop()


def test_partitions_with_missing_directories_are_reported(stopped):
    os.rename(stopped / "a-1", stopped / "elsewhere")
    assert "would start empty" in failures(looked(stopped))[0]


def test_directories_without_a_topic_are_reported(stopped):
    os.mkdir(stopped / "nobody-0")
    found = looked(stopped)
    assert adopt.is_adoptable(found)
    assert "belong to no topic" in adopt.rendered(found, False)


def test_old_records_are_reported(stopped):
    with open(stopped / "a-0" / f"{0:020d}.log", "r+b") as file:
        file.seek(batch.MAGIC_AT)
        file.write(b"\x01")
    assert "older than Kafka 0.11" in failures(looked(stopped))[0]


def commit(path, *records):
    """Append Kafka's records to the metadata log of a stopped node."""
    node = Node(path)
    service = node.service
    service._log.append(list(records), service.controller._epoch, service.image.offset + 1)
    node.crash()


def test_access_control_that_would_be_lost_is_a_failure(stopped):
    assert "expected org.apache.kafka" in failures(
        looked(stopped, authorizer_class_name="org.apache.kafka.X"))[0]
    commit(stopped, messages.AccessControlEntryRecord(
        id=bytes(16), resource_type=2, resource_name="a", pattern_type=3, principal="User:x",
        host="*", operation=3, permission_type=3))
    found = looked(stopped)
    assert adopt.is_adoptable(found)
    assert any("ACLs (1)" in finding.detail for finding in found if finding.status == "warn")


def test_access_rules_that_were_removed_are_no_failure(stopped):
    rules = [messages.AccessControlEntryRecord(
        id=bytes(15) + bytes([number]), resource_type=2, resource_name="a", pattern_type=3,
        principal="User:x", host="*", operation=3, permission_type=3) for number in range(2)]
    commit(stopped, *rules, *[messages.RemoveAccessControlEntryRecord(id=rule.id)
                              for rule in rules])
    assert adopt.is_adoptable(looked(stopped))
    commit(stopped, *rules, messages.RemoveAccessControlEntryRecord(id=rules[0].id))
    assert any("ACLs (1)" in finding.detail for finding in looked(stopped))


def test_metadata_log_elsewhere_is_moved_on_request(stopped, tmp_path):
    other = tmp_path / "metadata"
    other.mkdir()
    os.rename(stopped / adopt.METADATA, other / adopt.METADATA)
    kept = other / f"{adopt.METADATA}.moved" / "earlier"
    kept.mkdir(parents=True)
    assert "--execute moves it" in failures(looked(stopped, metadata_log_dir=str(other)))[0]
    assert (other / adopt.METADATA).is_dir()
    found = looked(stopped, metadata_log_dir=str(other), execute=True)
    assert adopt.is_adoptable(found)
    assert not (other / adopt.METADATA).exists() and kept.exists()
    node = Node(stopped)
    assert node.logs.get("a", 0).end_offset == 3
    node.stop()


def test_eligible_leaders_are_removed_by_log_records(stopped):
    commit(stopped, messages.ClearElrRecord(topic_name="a"), messages.ClearElrRecord())
    node = Node(stopped)
    assert node.image.topics["a"].partitions[0].eligible_leader_replicas == ()
    node.stop()


# ---- the steps of docs/migrate/kafka-node.md ---------------------------------------------------


def produced(broker, topic, values, **settings):
    confluent_kafka = pytest.importorskip("confluent_kafka")
    producer = confluent_kafka.Producer({
        "bootstrap.servers": broker.bootstrap, "enable.idempotence": True, **settings})
    if "transactional.id" in settings:
        producer.init_transactions(60)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key=b"%d" % (int(value) % 10))
    return producer


def write(broker, topic, values):
    assert produced(broker, topic, values).flush(60) == 0


def taken(broker, topic, count, group, commit=False):
    """Return values of a group's records, from its committed offset."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "isolation.level": "read_committed",
        "session.timeout.ms": 6000})
    consumer.subscribe([topic])
    values, end_s = [], time.monotonic() + 60
    while len(values) < count and time.monotonic() < end_s:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.append(int(message.value()))
    if commit:
        consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(values)


def create(broker, name, **configs):
    admin = pytest.importorskip("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([admin.NewTopic(name, 2, 1, config=configs)])[name].result(60)


def described(broker, name):
    admin = pytest.importorskip("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = admin.ConfigResource("TOPIC", name)
    configs = client.describe_configs([resource])[resource].result(60)
    return {key: entry.value for key, entry in configs.items()
            if entry.source == 1}  # the topic's own


def compacted(broker, dirs):
    """Wait until brokerd's cleaner has made the topic smaller."""
    folders = [Path(root) / f"compacted-{index}" for root in dirs.split(",") for index in range(2)]

    def size():
        return sum(path.stat().st_size for folder in folders for path in folder.glob("*.log"))

    before, end_s = size(), time.monotonic() + 60
    while size() >= before and time.monotonic() < end_s:
        # Segments roll after a second, at the next append.
        time.sleep(1.2)
        before = max(before, size())
        write(broker, "compacted", [b"199"])
    assert size() < before


@pytest.mark.kafka
@pytest.mark.timeout(400)
def test_documented_migration_works_in_both_directions(tmp_path):
    second = tmp_path / "second"
    dirs = f"{tmp_path / 'kafka'},{second}"
    kafka = Kafka(tmp_path, {"log.dirs": dirs})
    with kafka:
        create(kafka, "plain", **{"retention.ms": "987654321"})
        create(kafka, "compacted", **{"cleanup.policy": "compact", "segment.ms": "1000",
                                      "min.cleanable.dirty.ratio": "0.01"})
        create(kafka, "transactional")
        write(kafka, "plain", [b"%d" % number for number in range(100)])
        write(kafka, "compacted", [b"%d" % number for number in range(100)])
        for name, ends in (("one", True), ("two", False)):
            producer = produced(kafka, "transactional", [b"%d" % number for number in range(50)],
                                **{"transactional.id": name})
            producer.commit_transaction(60) if ends else producer.abort_transaction(60)
        assert len(taken(kafka, "plain", 100, "group", commit=True)) == 100
        write(kafka, "plain", [b"%d" % number for number in range(100, 120)])
        assert kafka.stop() in (0, 143)
    properties = kafka.broker.properties
    told = cli.brokerd(["adopt", str(properties)])
    assert told == 0
    ours = Brokerd(tmp_path / "ours", {"log.cleaner.backoff.ms": 200}, data_dir=dirs)
    with ours:
        assert described(ours, "plain") == {"retention.ms": "987654321"}
        assert taken(ours, "plain", 20, "group", commit=True) == list(range(100, 120))
        assert taken(ours, "transactional", 50, "t") == list(range(50))
        assert set(taken(ours, "compacted", 100, "c")) == set(range(100))
        write(ours, "plain", [b"%d" % number for number in range(120, 150)])
        write(ours, "compacted", [b"%d" % number for number in range(100, 200)])
        compacted(ours, dirs)
        assert taken(ours, "plain", 30, "group", commit=True) == list(range(120, 150))
        assert cli.pylog(["topics", "branch", "plain", "branched", "-b", ours.bootstrap]) == 0
        write(ours, "branched", [b"%d" % number for number in range(150, 160)])
        assert ours.stop() == 0
    with kafka:
        assert taken(kafka, "branched", 160, "b") == list(range(160))
        write(kafka, "plain", [b"%d" % number for number in range(150, 170)])
        assert taken(kafka, "plain", 20, "group") == list(range(150, 170))
        assert taken(kafka, "plain", 170, "anew") == list(range(170))
        assert len(taken(kafka, "transactional", 50, "u")) == 50
        assert set(taken(kafka, "compacted", 200, "d")) >= set(range(190, 200))
