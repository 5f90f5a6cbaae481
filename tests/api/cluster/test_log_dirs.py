import asyncio
import time
from types import SimpleNamespace

import pytest

from pylog.api.cluster.log_dirs import LogDirsApi
from pylog.protocol import messages
from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.talk import create_topic, fetch, produce

ALTER_LOG_DIRS, LOG_DIRS, PRODUCERS = 34, 35, 61
LOG_DIR_NOT_FOUND, NOT_LEADER, STORAGE = 57, 6, 56
CREATE_TOPICS, ALTER_CONFIGS, BROKER = 19, 44, 4
INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST = 38, 39, 42


def append(port: int, topic: str, records: bytes, partition: int = 0) -> int:
    """Retry like a client: a moving partition rejects requests for a moment."""
    with Connection(port) as connection:
        end_s = time.monotonic() + 10
        while True:
            row = produce(connection, topic, records, partition=partition)
            if row["error_code"] != NOT_LEADER:
                assert row["error_code"] == 0, row
                return row["base_offset"]
            assert time.monotonic() < end_s, row
            time.sleep(0.01)


def test_each_directory_lists_its_partitions_and_a_move_to_itself_is_accepted(tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    broker = Brokerd(tmp_path, {"log.dirs": ",".join(map(str, paths))}).start()
    create_topic(broker.port, "spread", 4)
    append(broker.port, "spread", raw.batch([raw.record()]), 0)
    with Connection(broker.port) as connection:
        answer = ask(connection, LOG_DIRS, 5, topics=None)
        assert [row["log_dir"] for row in answer["results"]] == list(map(str, paths))
        placed = {}
        for row in answer["results"]:
            assert row["error_code"] == 0 and 0 < row["usable_bytes"] <= row["total_bytes"]
            for partition in row["topics"][0]["partitions"]:
                placed[partition["partition_index"]] = row["log_dir"]
                assert (partition["partition_size"] > 0) == (partition["partition_index"] == 0)
        assert sorted(placed) == [0, 1, 2, 3] and len(set(placed.values())) == 2

        def move(path):
            answer = ask(connection, ALTER_LOG_DIRS, 2, dirs=[
                {"path": str(path), "topics": [{"name": "spread", "partitions": [0]}]}])
            return answer["results"][0]["partitions"][0]["error_code"]

        other = next(path for path in paths if str(path) != placed[0])
        assert move(placed[0]) == 0
        assert move(other) == 0

        def places():
            answer = ask(connection, LOG_DIRS, 5, topics=None)
            return {row["log_dir"]: {
                partition["partition_index"]: partition["is_future_key"]
                for topic in row["topics"] for partition in topic["partitions"]}
                for row in answer["results"]}

        end_s = time.monotonic() + 20
        while places()[str(other)].get(0) is not False or 0 in places()[placed[0]]:
            assert time.monotonic() < end_s, places()
            append(broker.port, "spread", raw.batch([raw.record()]), 0)
        end = append(broker.port, "spread", raw.batch([raw.record()]), 0)
        row = fetch(connection, "spread", 0)
        assert row["high_watermark"] == end + 1
        assert move(tmp_path / "three") == LOG_DIR_NOT_FOUND
    broker.kill()


def test_describe_producers_returns_a_partitions_producers(brokerd):
    create_topic(brokerd.port, "produced")
    for sequence in (0, 1):
        append(brokerd.port, "produced", raw.batch(
            [raw.record()], producer_id=4711, producer_epoch=2, base_sequence=sequence))
    with Connection(brokerd.port) as connection:
        answer = ask(connection, PRODUCERS, 0, topics=[
            {"name": "produced", "partition_indexes": [0]}])
    producer, = answer["topics"][0]["partitions"][0]["active_producers"]
    assert producer.pop("last_timestamp") > 1_700_000_000_000
    assert producer == {"producer_id": 4711, "producer_epoch": 2, "last_sequence": 1,
                        "coordinator_epoch": -1, "current_txn_start_offset": -1}


def test_cordoned_directory_keeps_its_partitions_and_gets_no_new_ones(tmp_path):
    paths = [str(tmp_path / name) for name in ("one", "two")]
    with Brokerd(tmp_path, {"log.dirs": ",".join(paths)}) as broker, \
            Connection(broker.port) as connection:
        def cordon(text):
            row = ask(connection, ALTER_CONFIGS, 1, validate_only=False, resources=[
                {"resource_type": BROKER, "resource_name": "1", "configs": [
                    {"name": "cordoned.log.dirs", "config_operation": 0, "value": text}]}])
            return row["responses"][0]["error_code"]

        def cordoned():
            answer = ask(connection, LOG_DIRS, 5, topics=None)
            return [row["log_dir"] for row in answer["results"] if row["is_cordoned"]]

        def places(topic):
            answer = ask(connection, LOG_DIRS, 5, topics=None)
            return {row["log_dir"] for row in answer["results"]
                    for found in row["topics"] if found["name"] == topic}

        def created(topic):
            return ask(connection, CREATE_TOPICS, 7, timeout=5000, topics=[
                {"name": topic, "num_partitions": 4, "replication_factor": 1,
                 "assignments": [], "configs": []}])["topics"][0]["error_code"]

        assert created("both") == 0 and places("both") == set(paths)
        assert cordon(paths[0]) == 0 and cordoned() == [paths[0]]
        assert created("second") == 0 and places("second") == {paths[1]}
        assert places("both") == set(paths)
        answer = ask(connection, ALTER_LOG_DIRS, 2, dirs=[
            {"path": paths[0], "topics": [{"name": "second", "partitions": [0]}]}])
        assert answer["results"][0]["partitions"][0]["error_code"] == INVALID_REPLICA_ASSIGNMENT
        assert cordon("*") == 0 and cordoned() == paths
        assert created("nowhere") == INVALID_REPLICATION_FACTOR
        assert cordon("/elsewhere") == INVALID_REQUEST and cordoned() == paths
        assert cordon("") == 0 and cordoned() == [] and created("again") == 0


def test_directories_that_are_cordoned_in_the_file_are_from_the_start(tmp_path):
    with Brokerd(tmp_path, {"cordoned.log.dirs": "*"}) as broker, \
            Connection(broker.port) as connection:
        answer = ask(connection, CREATE_TOPICS, 7, timeout=5000, topics=[
            {"name": "nowhere", "num_partitions": 1, "replication_factor": 1, "assignments": [],
             "configs": []}])
        assert answer["topics"][0]["error_code"] == INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("name, there, error", [
    ("orders", "/b", 0), ("__consumer_offsets", "/b", STORAGE), ("__consumer_offsets", "/a", 0),
    ("__transaction_state", "/b", STORAGE), ("__share_group_state", "/b", STORAGE)])
def test_partition_of_a_coordinator_is_not_moved(name, there, error):
    moved = []
    logs = SimpleNamespace(
        describe=lambda: [("/a", False, []), ("/b", False, [])], get=lambda *_: object(),
        disks=SimpleNamespace(is_cordoned=lambda number: False), is_offline=lambda *_: False,
        dir_index=lambda *_: 0, move=lambda *given: moved.append(given))
    handlers = LogDirsApi(logs, SimpleNamespace(image=SimpleNamespace(
        partition=lambda *_: object()))).handlers()
    new = messages.AlterReplicaLogDirsRequest
    answer = asyncio.run(handlers[ALTER_LOG_DIRS](None, new(dirs=[new.AlterReplicaLogDir(
        path=there, topics=[new.AlterReplicaLogDirTopic(name=name, partitions=[3])])])))
    assert answer.results[0].partitions[0].error_code == error
    assert moved == ([] if error else [(name, 3, ["/a", "/b"].index(there))])
