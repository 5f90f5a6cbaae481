"""Our follower of an Apache Kafka leader: the same bytes in the same files."""

import asyncio
import os
import time
import uuid

import pytest

from pylog._native.log import log
from pylog._native.records import batch
from pylog.peer.connection import Peer
from pylog.peer.dial import dial
from pylog.protocol import messages
from pylog.replication.departures import Departures
from pylog.replication.fetching import ReplicaFetchers
from pylog.replication.roles import Registered
from tests.replication.test_fetching import CUTS, SETTINGS
from tests.wire import raw, talk
from tests.wire.messages import ask
from tests.wire.raw import Connection

pytestmark = pytest.mark.kafka

US, KAFKA = 7, 1
SEGMENT_BYTES = 1 << 20
NOT_LEADER = 6
FEATURES = {"metadata.version": (7, 30), "eligible.leader.replicas.version": (0, 1),
            "kraft.version": (0, 1), "group.version": (0, 1), "transaction.version": (0, 2),
            "share.version": (0, 1), "streams.version": (0, 1)}


def controller_port(kafka) -> int:
    text = kafka.broker.properties.read_text()
    voters = text.partition("controller.quorum.voters=")[2].partition("\n")[0]
    return int(voters.rpartition(":")[2])


async def register(kafka) -> None:
    """Register this node as a broker that can be a replica; it stays fenced."""
    assert not kafka.is_shared
    meta = (kafka.data_dir / "meta.properties").read_text()
    new = messages.BrokerRegistrationRequest
    peer = await Peer.connect("127.0.0.1", controller_port(kafka), "test")
    answer = await peer.call(new(
        broker_id=US, cluster_id=meta.partition("cluster.id=")[2].partition("\n")[0],
        incarnation_id=uuid.uuid4().bytes, log_dirs=[uuid.uuid4().bytes],
        listeners=[new.Listener(name="PLAINTEXT", host="127.0.0.1", port=1)],
        features=[new.Feature(name=name, min_supported_version=low, max_supported_version=high)
                  for name, (low, high) in FEATURES.items()], rack=None), 4)
    assert answer.error_code == 0, answer
    peer.close()


async def unregister(kafka) -> None:
    peer = await Peer.connect("127.0.0.1", kafka.port, "test")
    answer = await peer.call(messages.UnregisterBrokerRequest(broker_id=US), 0)
    assert answer.error_code == 0, answer
    peer.close()


@pytest.fixture
def replicated(kafka):
    """Register, and unregister at the end."""
    asyncio.run(register(kafka))
    yield kafka
    asyncio.run(unregister(kafka))


def create(kafka, name, partitions):
    """Create the topic and return its id; every partition is led by Kafka, followed by us."""
    configs = [{"name": "segment.bytes", "value": str(SEGMENT_BYTES)}]
    with Connection(kafka.port) as connection:
        answer = ask(connection, raw.CREATE_TOPICS, 7, timeout=10000, topics=[{
            "name": name, "num_partitions": -1, "replication_factor": -1, "configs": configs,
            "assignments": [{"partition_index": index, "broker_ids": [KAFKA, US]}
                            for index in range(partitions)]}])["topics"][0]
    assert answer["error_code"] == 0, answer
    return uuid.UUID(str(answer["topic_id"])).bytes


def fill(kafka, name, partition, source, batches):
    for _ in range(batches):
        records = [(b"k", source.randbytes(source.choice([10, 1000, 60_000])), 1_700_000_000_000,
                    ()) for _ in range(source.randint(1, 4))]
        made = batch.build(records, codec=source.randint(0, 4))
        with Connection(kafka.port) as connection:
            row = talk.produce(connection, name, made, partition=partition, acks=1)
            end_s = time.monotonic() + 20
            while row["error_code"] == NOT_LEADER and time.monotonic() < end_s:
                # Its metadata has the topic, its log does not yet.
                time.sleep(0.05)
                row = talk.produce(connection, name, made, partition=partition, acks=1)
        assert row["error_code"] == 0, row


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_follower_of_kafka_has_the_same_segment_files(replicated, tmp_path, random_source):
    name = talk.unique("followed")
    topic_id = create(replicated, name, 2)
    directory = log.LogDir(tmp_path, 2)
    logs = [log.Log.open(directory, name, index, topic_id, {"segment.bytes": SEGMENT_BYTES})
            for index in range(2)]
    for index in range(2):
        fill(replicated, name, index, random_source, 30)

    def ends():
        with Connection(replicated.port) as connection:
            answer = ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[{
                "name": name, "partitions": [{"partition_index": index, "timestamp": -1}
                                             for index in range(2)]}])
        return [row["offset"] for row in answer["topics"][0]["partitions"]]

    async def scenario():
        fetchers = ReplicaFetchers(
            SETTINGS, US, lambda host, port: dial(host, port, time.monotonic_ns), CUTS.cut,
            Departures(time.monotonic))
        fetchers.set_broker_epoch(-1)
        fetchers.set_nodes({KAFKA: Registered("127.0.0.1", replicated.port, 0)})
        for index, one in enumerate(logs):
            one.become_follower(0)
            fetchers.follow(one, topic_id, name, index, KAFKA, 0)
        async with asyncio.timeout(60):
            await until(lambda: [one.end_offset for one in logs] == ends())
            await asyncio.to_thread(fill, replicated, name, 0, random_source, 10)
            await until(lambda: [one.high_watermark for one in logs] == ends())
            # The leader's log starts after the follower's end.
            fetchers.unfollow(topic_id, 1)
            logs[1].truncate(3)
            with Connection(replicated.port) as connection:
                answer = ask(connection, 21, 2, timeout=10000, topics=[{
                    "name": name, "partitions": [{"partition_index": 1, "offset": 20}]}])
            assert answer["topics"][0]["partitions"][0]["error_code"] == 0
            fetchers.follow(logs[1], topic_id, name, 1, KAFKA, 0)
            await until(lambda: logs[1].high_watermark == ends()[1])
            await until(lambda: all(row[3] == 0 for row in fetchers.lag()))
        await fetchers.close()

    asyncio.run(scenario())
    assert logs[1].start_offset == 20
    assert [one.last_epoch for one in logs] == [0, 0]
    for one in logs:
        one.close(1_700_000_000_000)
    theirs = replicated.data_dir / f"{name}-0"
    files = sorted(file for file in os.listdir(theirs) if file.endswith(".log"))
    assert len(files) > 1
    for file in files:
        assert (tmp_path / f"{name}-0" / file).read_bytes() == (theirs / file).read_bytes(), file
