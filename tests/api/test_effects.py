"""Administration of a running brokerd: changes take effect at once and after a restart."""

import time

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.talk import append, create_topic, fetch, produce

CREATE_PARTITIONS, DELETE_RECORDS, DESCRIBE_CONFIGS, LOG_DIRS, INCREMENTAL = 37, 21, 32, 35, 44
TOPIC, BROKER = 2, 4
MESSAGE_TOO_LARGE = 10


def alter(port: int, kind: int, name: str, **configs) -> None:
    with Connection(port) as connection:
        answer = ask(connection, INCREMENTAL, 1, resources=[{
            "resource_type": kind, "resource_name": name, "configs": [
                {"name": key.replace("_", "."), "config_operation": 1 if value is None else 0,
                 "value": value} for key, value in configs.items()]}])
    assert answer["responses"][0]["error_code"] == 0, answer


def value_of(port: int, kind: int, name: str, key: str) -> str:
    with Connection(port) as connection:
        answer = ask(connection, DESCRIBE_CONFIGS, 1, resources=[{
            "resource_type": kind, "resource_name": name, "configuration_keys": [key]}])
    return answer["results"][0]["configs"][0]["value"]


def big(size: int = 5000) -> bytes:
    return raw.batch([raw.record(b"k", b"v" * size)])


def error_of(port: int, topic: str, records: bytes, partition: int = 0) -> int:
    with Connection(port) as connection:
        return produce(connection, topic, records, partition=partition)["error_code"]


def start_offset(port: int, topic: str) -> int:
    with Connection(port) as connection:
        row = ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[{
            "name": topic, "partitions": [{"partition_index": 0, "timestamp": -2}]}])
    return row["topics"][0]["partitions"][0]["offset"]


def delete_records(port: int, topic: str, offset: int) -> dict:
    with Connection(port) as connection:
        answer = ask(connection, DELETE_RECORDS, 2, timeout=5000, topics=[{
            "name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}])
    return answer["topics"][0]["partitions"][0]


def test_a_topics_limit_binds_the_next_batch(brokerd):
    create_topic(brokerd.port, "limited")
    assert error_of(brokerd.port, "limited", big()) == 0
    alter(brokerd.port, TOPIC, "limited", max_message_bytes="1000")
    assert error_of(brokerd.port, "limited", big()) == MESSAGE_TOO_LARGE
    alter(brokerd.port, TOPIC, "limited", max_message_bytes=None)
    assert error_of(brokerd.port, "limited", big()) == 0


def test_broker_limit_applies_to_topics_without_own_value(brokerd):
    create_topic(brokerd.port, "follows")
    create_topic(brokerd.port, "decides", max_message_bytes=1 << 20)
    alter(brokerd.port, BROKER, "", message_max_bytes="1000")
    assert error_of(brokerd.port, "follows", big()) == MESSAGE_TOO_LARGE
    assert error_of(brokerd.port, "decides", big()) == 0
    create_topic(brokerd.port, "newcomer")
    assert error_of(brokerd.port, "newcomer", big()) == MESSAGE_TOO_LARGE
    alter(brokerd.port, BROKER, "", message_max_bytes=None)
    assert error_of(brokerd.port, "follows", big()) == 0


def test_a_topics_new_codec_is_the_next_batchs(brokerd):
    create_topic(brokerd.port, "packed")
    append(brokerd.port, "packed", big())
    alter(brokerd.port, TOPIC, "packed", compression_type="zstd")
    append(brokerd.port, "packed", big())
    with Connection(brokerd.port) as connection:
        stored = fetch(connection, "packed", 1)["records"]
    assert int.from_bytes(stored[21:23], "big") & 7 == raw.ZSTD


def test_new_partitions_take_records_and_old_grants_do_not_hide_them(brokerd):
    create_topic(brokerd.port, "grows")
    append(brokerd.port, "grows", big())
    assert error_of(brokerd.port, "grows", big(), 3) == 3
    with Connection(brokerd.port) as connection:
        ask(connection, CREATE_PARTITIONS, 3, timeout=5000, topics=[
            {"name": "grows", "count": 4, "assignments": None}])
    for partition in range(4):
        append(brokerd.port, "grows", big(), partition)
    with Connection(brokerd.port) as connection:
        assert fetch(connection, "grows", partition=3)["high_watermark"] == 1


def test_all_changes_survive_a_restart(tmp_path):
    broker = Brokerd(tmp_path).start()
    create_topic(broker.port, "kept")
    alter(broker.port, TOPIC, "kept", retention_ms="4711000")
    alter(broker.port, BROKER, "", message_max_bytes="1000")
    alter(broker.port, BROKER, "1", log_roll_ms="7000000")
    with Connection(broker.port) as connection:
        ask(connection, CREATE_PARTITIONS, 3, timeout=5000, topics=[
            {"name": "kept", "count": 3, "assignments": None}])
    for end in (broker.stop, broker.kill):
        end()
        broker.start()
        assert value_of(broker.port, TOPIC, "kept", "retention.ms") == "4711000"
        assert value_of(broker.port, BROKER, "1", "log.roll.ms") == "7000000"
        assert value_of(broker.port, BROKER, "", "message.max.bytes") == "1000"
        assert error_of(broker.port, "kept", big()) == MESSAGE_TOO_LARGE
        append(broker.port, "kept", big(10), 2)
    broker.kill()


def test_deleted_records_stay_deleted_after_a_kill(tmp_path):
    broker = Brokerd(tmp_path).start()
    create_topic(broker.port, "trimmed", segment_bytes=1 << 20)
    for _ in range(40):
        append(broker.port, "trimmed", big(100_000))
    assert delete_records(broker.port, "trimmed", 35) == {
        "partition_index": 0, "low_watermark": 35, "error_code": 0}
    with Connection(broker.port) as connection:
        assert ask(connection, LOG_DIRS, 4, topics=None)["results"][0]["topics"][0][
            "partitions"][0]["partition_size"] < 2 << 20
    broker.kill()
    broker.start()
    assert start_offset(broker.port, "trimmed") == 35
    with Connection(broker.port) as connection:
        assert fetch(connection, "trimmed", 34)["error_code"] == 1
        assert fetch(connection, "trimmed", 35)["error_code"] == 0
    broker.kill()


@pytest.mark.slow
def test_a_retention_set_for_the_broker_removes_old_segments(tmp_path):
    broker = Brokerd(tmp_path, {"log.retention.check.interval.ms": "100",
                                "log.initial.task.delay.ms": "0"}).start()
    create_topic(broker.port, "ages", segment_bytes=1 << 20)
    for _ in range(30):
        append(broker.port, "ages", big(100_000))
    alter(broker.port, BROKER, "", log_retention_bytes="1500000")
    end_s = time.monotonic() + 45
    while start_offset(broker.port, "ages") == 0 and time.monotonic() < end_s:
        time.sleep(0.2)
    assert start_offset(broker.port, "ages") > 0
    broker.kill()
