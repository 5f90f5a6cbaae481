"""Directories that fail under a running Apache Kafka and under brokerd: same faults, same
responses.

Intended differences (docs/reference/differences.md) are excluded: the effect of a failed read or
flush, a full disk, and eligible leader replicas.
"""

import errno
import time

import pytest

from tests.durability.disk import environment
from tests.fixtures.brokers import Brokerd, Kafka
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection, batch, record
from tests.wire.sides import Side, differences
from tests.wire.talk import fetch, produce

DELETE_RECORDS, EPOCHS, ALTER_LOG_DIRS, LOG_DIRS, PARTITIONS, ELECT, PRODUCERS, DESCRIBE = \
    21, 23, 34, 35, 37, 43, 61, 75
COORDINATOR, COMMIT, COMMITTED = 10, 8, 9
FAULTS = {"write": errno.EIO, "open": errno.EIO}
TOPIC_PARTITIONS, OFFSETS_PARTITIONS = 9, 12
PREFERRED, UNCLEAN = 0, 1
WAIT_S = 20
# Eligible leader replicas preserve the last in-sync replica in Kafka; here the ISR does.
ELR = ("isr_nodes", "eligible_leader_replicas", "last_known_elr")


class Disks:
    """One broker with a good directory and one for each of FAULTS."""

    def __init__(self, kind: str, root, library):
        root.mkdir()
        self.places = {name: root / "run" / name for name in ("good", *FAULTS)}
        self.faults = root / "faults"
        self._variables = environment(library, root / "run", faults=self.faults)
        settings = {
            "log.dirs": ",".join(map(str, self.places.values())), "log.segment.bytes": 1 << 20,
            "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
            "offsets.topic.replication.factor": 1, "auto.create.topics.enable": "false"}
        if kind == "kafka":
            self.broker = Kafka(root, settings)
            self.broker.broker.data_dir = self.places["good"]
        else:
            self.broker = Brokerd(root / "run", settings, environment=self._variables,
                                  data_dir=self.places["good"])

    def start(self, monkeypatch):
        with monkeypatch.context() as patch:
            for key, value in self._variables.items():
                patch.setenv(key, value)
            self.broker.start()
        return self

    def of(self, topic: str, count: int) -> dict[str, list[int]]:
        """Return directory -> its partitions of the topic, once all exist."""
        end_s = time.monotonic() + WAIT_S
        while True:
            found = {place: [index for index in range(count)
                             if (path / f"{topic}-{index}").exists()]
                     for place, path in self.places.items()}
            # Kafka reports leaders before it has created their directories.
            if sum(map(len, found.values())) == count:
                return found
            assert time.monotonic() < end_s, found
            time.sleep(0.05)

    def call(self, key: int, version: int, /, **fields) -> dict:
        with Connection(self.broker.port, wait_s=WAIT_S) as connection:
            return ask(connection, key, version, **fields)

    def rows(self, topic: str) -> dict[int, dict]:
        answer = self.call(raw.METADATA, 12, allow_auto_topic_creation=False,
                           topics=[{"name": topic, "topic_id": None}])
        return {row["partition_index"]: row for row in answer["topics"][0]["partitions"]}

    def wait(self, topic: str, count: int, led: bool) -> None:
        end_s = time.monotonic() + WAIT_S
        while True:
            rows = self.rows(topic)
            if sum((row["leader_id"] >= 0) == led for row in rows.values()) == count:
                return
            assert time.monotonic() < end_s, rows
            time.sleep(0.05)


def _group_on(partitions: list[int]) -> str:
    """Return a group id whose offsets partition is one of these."""
    for number in range(1000):
        value = 0
        for letter in f"group-{number}":
            value = (31 * value + ord(letter)) & 0xFFFFFFFF
        if (value & 0x7FFFFFFF) % OFFSETS_PARTITIONS in partitions:
            return f"group-{number}"
    raise AssertionError(f"none of {partitions}")


def _ask_of_groups(disks: Disks, note, groups: dict[str, str], topic: str) -> None:
    for place, group in groups.items():
        found = disks.call(COORDINATOR, 4, key_type=0, coordinator_keys=[group])
        note(f"coordinator in {place}", found["coordinators"][0]["error_code"])
        note(f"commit in {place}", disks.call(
            COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[
                {"name": topic, "partitions": [{
                    "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1,
                    "committed_metadata": ""}]}])["topics"][0]["partitions"][0]["error_code"])
        note(f"committed in {place}", disks.call(
            COMMITTED, 7, group_id=group, require_stable=False, topics=None)["error_code"])


def _ask_of_partition(disks: Disks, note, topic: str, index: int, other: str) -> None:
    row = disks.rows(topic)[index]
    note("metadata", {key: row[key] for key in ("error_code", "leader_id", "replica_nodes",
                                                "offline_replicas")})
    described = disks.call(DESCRIBE, 0, topics=[{"name": topic}], cursor=None,
                           response_partition_limit=100)["topics"][0]["partitions"]
    row = next(row for row in described if row["partition_index"] == index)
    note("described", {key: row[key] for key in row if key not in (
        *ELR, "leader_epoch", "partition_index")})
    with Connection(disks.broker.port, wait_s=WAIT_S) as connection:
        for acks in (-1, 1):
            note(f"produce {acks}", produce(
                connection, topic, batch(), partition=index, acks=acks)["error_code"])
        note("fetch", fetch(connection, topic, 0, partition=index)["error_code"])
        note("fetch beyond", fetch(connection, topic, 999, partition=index)["error_code"])
    for timestamp in (-1, -2, -3, 1000):
        asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        note(f"offset {timestamp}", disks.call(
            raw.LIST_OFFSETS, 8, replica_id=-1, isolation_level=0, topics=[
                {"name": topic, "partitions": [asked]}])
            ["topics"][0]["partitions"][0]["error_code"])
    note("epoch", disks.call(EPOCHS, 4, replica_id=-1, topics=[{"topic": topic, "partitions": [
        {"partition": index, "current_leader_epoch": -1, "leader_epoch": 0}]}])
        ["topics"][0]["partitions"][0]["error_code"])
    note("delete records", disks.call(DELETE_RECORDS, 2, timeout=2000, topics=[
        {"name": topic, "partitions": [{"partition_index": index, "offset": 1}]}])
        ["topics"][0]["partitions"][0]["error_code"])
    note("producers", disks.call(PRODUCERS, 0, topics=[
        {"name": topic, "partition_indexes": [index]}])
        ["topics"][0]["partitions"][0]["error_code"])
    for goal in ("good", other):
        note(f"move to {goal}", disks.call(ALTER_LOG_DIRS, 2, dirs=[
            {"path": str(disks.places[goal]), "topics": [
                {"name": topic, "partitions": [index]}]}])
            ["results"][0]["partitions"][0]["error_code"])
    for election in (PREFERRED, UNCLEAN):
        note(f"election {election}", disks.call(
            ELECT, 2, election_type=election, timeout=2000, topic_partitions=[
                {"topic": topic, "partitions": [index]}])
            ["replica_election_results"][0]["partition_result"][0]["error_code"])


def _ask_of_directories(disks: Disks, note, topic: str) -> None:
    names = {str(path): name for name, path in disks.places.items()}
    note("directories", sorted(
        (names[row["log_dir"]], row["error_code"], row["total_bytes"] > 0,
         any(found["name"] == topic for found in row["topics"]))
        for row in disks.call(LOG_DIRS, 4, topics=None)["results"]))


def _fail(disks: Disks, note, topic: str, index: int, place: str) -> None:
    with open(disks.faults, "a") as faults:
        faults.write(f"{place} /{place}/ {FAULTS[place]}\n")
    codes = []
    with Connection(disks.broker.port, wait_s=WAIT_S) as connection:
        while not codes or (codes[-1] == 0 and len(codes) < 9):
            codes.append(produce(connection, topic, batch([record(value=bytes(400_000))]),
                                 partition=index)["error_code"])
    note("the fault", codes[-1])


def _history(disks: Disks, monkeypatch) -> list:
    """Return all compared responses as (label, response)."""
    disks.start(monkeypatch)
    side, notes = Side(disks.broker), []
    topic = side.topic("spread", TOPIC_PARTITIONS)
    side.close()
    disks.call(COORDINATOR, 4, key_type=0, coordinator_keys=["any"])
    disks.wait("__consumer_offsets", OFFSETS_PARTITIONS, led=True)
    places = disks.of(topic, TOPIC_PARTITIONS)
    groups = {place: _group_on(partitions)
              for place, partitions in disks.of("__consumer_offsets", OFFSETS_PARTITIONS).items()}
    for index in range(TOPIC_PARTITIONS):
        with Connection(disks.broker.port) as connection:
            for _ in range(2):
                assert produce(connection, topic, batch(), partition=index)["error_code"] == 0
    offline = 0
    for place in FAULTS:
        def note(label, value, stage=f"{place}: "):
            notes.append((stage + label, value))

        _fail(disks, note, topic, places[place][0], place)
        offline += len(places[place])
        disks.wait(topic, offline, led=False)
        _ask_of_partition(disks, note, topic, places[place][0], place)
        _ask_of_groups(disks, note, groups, topic)
        _ask_of_directories(disks, note, topic)
    _while_offline(disks, lambda label, value: notes.append((label, value)), topic, monkeypatch)
    return notes


def _while_offline(disks: Disks, note, topic: str, monkeypatch) -> None:
    """Compare the behaviour while directories are offline.

    New partitions, a start with failed disks, a topic deleted and re-created, a start with good
    disks.
    """
    added = disks.call(PARTITIONS, 3, timeout=5000, validate_only=False, topics=[
        {"name": topic, "count": TOPIC_PARTITIONS + 2, "assignments": None}])
    note("more partitions", added["results"][0]["error_code"])
    disks.wait(topic, 5, led=True)
    disks.faults.write_text("".join(f"any /{place}/ {errno.EIO}\n" for place in FAULTS))
    disks.broker.stop()
    disks.start(monkeypatch)
    disks.wait(topic, 5, led=True)
    _ask_of_directories(disks, note, topic)
    note("delete", disks.call(raw.DELETE_TOPICS, 4, timeout=5000, topic_names=[topic])
         ["responses"][0]["error_code"])
    side = Side(disks.broker)
    side.close()
    answer = disks.call(raw.CREATE_TOPICS, 7, timeout=5000, topics=[
        {"name": topic, "num_partitions": TOPIC_PARTITIONS, "replication_factor": 1}])
    note("made again", answer["topics"][0]["error_code"])
    disks.wait(topic, TOPIC_PARTITIONS, led=True)
    disks.faults.unlink()
    disks.broker.stop()
    disks.start(monkeypatch)
    disks.wait(topic, TOPIC_PARTITIONS, led=True)
    _ask_of_directories(disks, note, topic)
    time.sleep(0.5)
    with Connection(disks.broker.port) as connection:
        note("the new topic", [fetch(connection, topic, 0, partition=index)["high_watermark"]
                               for index in range(TOPIC_PARTITIONS)])


@pytest.mark.kafka
def test_failed_directory_gets_the_same_responses_as_in_kafka(preload, ram, monkeypatch, against):
    told = []
    for kind in ("kafka", against):
        disks = Disks(kind, ram / f"{len(told)}-{kind}", preload)
        try:
            told.append(_history(disks, monkeypatch))
        finally:
            disks.broker.kill()
    kafka, ours = told
    assert [label for label, _ in kafka] == [label for label, _ in ours]
    found = [line for (label, left), (_, right) in zip(kafka, ours)
             for line in differences(left, right, label)]
    assert not found, "\n" + "\n".join(found)
