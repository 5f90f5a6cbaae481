"""Fetches and queries of the metadata log get the same responses from our controller and Kafka's.
"""

import asyncio

import pytest

from pylog.protocol import messages
from tests.cluster import oracle
from tests.cluster.oracle import configs

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

# Kafka's log ends with its last record: no record is written without a request.
SETTINGS = {"metadata.log.max.snapshot.interval.ms": 2000, "metadata.max.idle.interval.ms": 0}
BROKER = 4
SNAPSHOTS_TRIED_MAX = 60
TOPIC = "__cluster_metadata"
FETCH, CLUSTER = 17, 2
SELF_MADE = {"last_fetch_timestamp", "last_caught_up_timestamp", "port", "host", "cluster_id",
             "voter_directory_id", "replica_directory_id",
             "log_start_offset"}  # Our log begins at the end of its newest snapshot.


async def with_snapshots(both):
    """Wait until each side has a snapshot. A record after the interval triggers it."""
    for side in both.sides:
        await side.records()
    number = 0
    while not all(newest_snapshot(side)[0] for side in both.sides):
        assert number < SNAPSHOTS_TRIED_MAX, number
        await asyncio.sleep(1)
        number += 1
        await both.ask(configs(BROKER, "", [("log.roll.ms", 0, str(1000 + number))]), 1,
                       seen=seen)


@pytest.fixture(scope="module")
def controllers(tmp_path_factory):
    nodes = oracle.controllers(tmp_path_factory.mktemp("oracle"), SETTINGS)
    try:
        for node in nodes:
            node.start()
        oracle.compared(nodes, with_snapshots)
        yield nodes
        assert nodes[1].alarms() == []
    finally:
        for node in nodes:
            node.kill()


def newest_snapshot(side) -> tuple:
    """Return (end offset, epoch) of the newest snapshot."""
    folder = side.node.data_dir / f"{TOPIC}-0"
    name = max((path.stem for path in folder.glob("*.checkpoint")), default="0-0")
    end, _, epoch = name.partition("-")
    return int(end), int(epoch)


def seen(side, answer):
    """Remove generated values from a response, and translate offsets and epochs to their meaning.
    """
    def shown(value, name=""):
        if isinstance(value, dict):
            return {key: shown(part, key) for key, part in value.items() if key not in SELF_MADE}
        if isinstance(value, list):
            return [shown(row, name) for row in value]
        if name in ("leader_epoch", "epoch") and value > 0:
            return "epoch" if value <= side.epoch else value
        if name in ("high_watermark", "log_end_offset", "size") and value > 0:
            return "some"
        if name in ("records", "unaligned_records"):
            return "some" if value else "none"
        if name == "end_offset" and value >= 0:
            return "an offset"
        return value
    return shown(answer)


def fetch(offset=0, epoch=0, **more):
    """Return a Fetch request.

    offset, epoch: numbers, or (side) -> number. more: replaces fields of the partition or of the
    request.
    """
    new = messages.FetchRequest

    def make(side):
        partition = {
            "partition": 0, "current_leader_epoch": side.epoch, "log_start_offset": -1,
            "fetch_offset": offset(side) if callable(offset) else offset,
            "last_fetched_epoch": epoch(side) if callable(epoch) else epoch,
            "partition_max_bytes": 1 << 20}
        whole = {"max_wait_ms": 0, "min_bytes": 0, "session_epoch": -1,
                 "replica_state": new.ReplicaState(replica_id=-1)}
        for key, value in more.items():
            value = value(side) if callable(value) else value
            if key in ("topic_id", "topics"):
                continue
            (partition if key in new.FetchPartition.__slots__ else whole)[key] = value
        topics = [new.FetchTopic(topic_id=more.get("topic_id", oracle.LOG_ID),
                                 partitions=[new.FetchPartition(**partition)])]
        return new(**whole, topics=topics * more.get("topics", 1))
    return make


def test_fetches_of_the_metadata_log(controllers):
    async def scenario(both):
        for side in both.sides:
            await side.records()

        async def ask(label, *arguments, **more):
            await both.ask(fetch(*arguments, **more), FETCH, label, seen)

        await ask("from the start, which may be gone")
        await ask("of nothing fetched", 0, -1)
        await ask("from the end", lambda side: side._next, lambda side: side._last_epoch)
        await ask("beyond the end", lambda side: side._next + 7, lambda side: side._last_epoch)
        await ask("a negative offset", -1, 0)
        await ask("a former leader epoch", current_leader_epoch=lambda side: side.epoch - 1)
        await ask("a coming leader epoch", current_leader_epoch=lambda side: side.epoch + 1)
        await ask("another partition", partition=1)
        await ask("another topic", topic_id=b"\x07" * 16)
        await ask("no topic", topics=0)
        await ask("two topics", topics=2)
        await ask("of this cluster", cluster_id=lambda side: side.cluster_id)
        await ask("of another cluster", cluster_id="another")
        await ask("a negative wait", max_wait_ms=-1)

    oracle.compared(controllers, scenario)


def granted(side, answer):
    """Return the shown response of a granted vote, else "refused".

    Kafka 4.3.1 cannot return the reason: its error responses lack records, a required field, and
    become -1.
    """
    errors = [answer["error_code"], *(row["error_code"] for topic in answer["topics"]
                                      for row in topic["partitions"])]
    return seen(side, answer) if not any(errors) else "refused"


def snapshot_part(**more):
    new = messages.FetchSnapshotRequest

    def make(side):
        end, epoch = newest_snapshot(side)
        fields = {"partition": 0, "leader_epoch": side.epoch, "position": 0, "index": 0,
                  "end": end, "epoch": epoch, "name": TOPIC, "cluster_id": None,
                  "max_bytes": 1 << 20}
        fields.update({key: value(side) if callable(value) else value
                       for key, value in more.items()})
        topic = new.TopicSnapshot(name=fields["name"], partitions=[new.PartitionSnapshot(
            partition=fields["partition"], current_leader_epoch=fields["leader_epoch"],
            snapshot_id=new.SnapshotId(end_offset=fields["end"], epoch=fields["epoch"]),
            position=fields["position"])])
        return new(cluster_id=fields["cluster_id"], max_bytes=fields["max_bytes"],
                   topics=[topic])
    return make


@pytest.mark.parametrize("version", range(2))
def test_parts_of_a_snapshot(controllers, version):
    async def scenario(both):
        for side in both.sides:
            await side.records()

        async def ask(label, **more):
            await both.ask(snapshot_part(**more), version, label, granted)

        await ask("from the start")
        await ask("a byte", max_bytes=1)
        await ask("from amid it", position=40)
        await ask("beyond it", position=1 << 40)
        await ask("before it", position=-1)
        await ask("one that is not there", end=1 << 40)
        await ask("one of another epoch", epoch=99)
        await ask("a former leader epoch", leader_epoch=lambda side: side.epoch - 1)
        await ask("a coming leader epoch", leader_epoch=lambda side: side.epoch + 1)
        await ask("another partition", partition=1)
        await ask("another topic", name="x")
        # A fetch without a topic terminates Kafka's controller.
        await ask("of this cluster", cluster_id=lambda side: side.cluster_id)
        await ask("of another cluster", cluster_id="another")

    oracle.compared(controllers, scenario)


@pytest.mark.parametrize("version", range(3))
def test_descriptions_of_the_quorum(controllers, version):
    new = messages.DescribeQuorumRequest

    def description(*topics):
        return lambda side: new(topics=[new.TopicData(topic_name=name, partitions=[
            new.PartitionData(partition_index=index) for index in indexes])
            for name, indexes in topics])

    async def scenario(both):
        for side in both.sides:
            await side.records()
        for label, topics in (
                ("the log", ((TOPIC, [0]),)), ("another partition", ((TOPIC, [1]),)),
                ("two", ((TOPIC, [0, 1]),)), ("another topic", (("x", [0]),)),
                ("both topics", ((TOPIC, [0]), ("x", [0]))), ("no partition", ((TOPIC, []),)),
                ("none", ())):
            await both.ask(description(*topics), version, label, seen)

    oracle.compared(controllers, scenario)


def test_descriptions_of_the_cluster(controllers):
    new = messages.DescribeClusterRequest

    async def scenario(both):
        for version in range(CLUSTER + 1):
            for kind in (0, 1, 2, 3, -1) if version else (1,):
                for fenced in (False, True) if version > 1 else (False,):
                    for rights in (False, True):
                        await both.ask(lambda _, kind=kind, fenced=fenced, rights=rights: new(
                            endpoint_type=kind, include_fenced_brokers=fenced,
                            include_cluster_authorized_operations=rights), version,
                            f"version {version}", seen)

    oracle.compared(controllers, scenario)


def test_supported_requests_of_a_controller(controllers):
    """Compare the supported requests and their highest versions."""
    def ranges(_, answer):
        return sorted((row["api_key"], row["max_version"]) for row in answer["api_keys"])

    async def scenario(both):
        theirs, ours = [ranges(side, side.shown(await side.call(
            messages.ApiVersionsRequest(
                client_software_name="test", client_software_version="1"), 4)))
            for side in both.sides]
        print("only Kafka's", set(theirs) - set(ours), "only ours", set(ours) - set(theirs))
        assert set(ours) <= set(theirs)

    oracle.compared(controllers, scenario)
