"""Shared by nearly all wire tests: create a topic, append to it, read it back."""

import itertools
import os
import time

from tests.wire import raw
from tests.wire.messages import ask, decode
from tests.wire.raw import Connection

DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 44
GROUP_CONFIG = 32
_SERIAL = itertools.count()


def unique(stem: str) -> str:
    """Return a topic name that no other test uses, on this broker or another."""
    return f"{stem}-{os.getpid()}x{next(_SERIAL)}"


def create_topic(port: int, name: str, partitions: int = 1, **configs) -> str:
    """Create `name` and wait until every partition has a leader. Return its id in hex."""
    rows = [{"name": key.replace("_", "."), "value": str(value)} for key, value in configs.items()]
    with Connection(port) as connection:
        answer = ask(connection, raw.CREATE_TOPICS, 7, timeout=10000, topics=[{
            "name": name, "num_partitions": partitions, "replication_factor": 1, "configs": rows,
        }])
        assert answer["topics"][0]["error_code"] == 0, answer
        end_s = time.monotonic() + 10
        while time.monotonic() < end_s:
            # Kafka's metadata names a leader before that broker has become leader: query the
            # leader.
            row = ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[{
                "name": name, "partitions": [{"partition_index": index, "timestamp": -1}
                                             for index in range(partitions)]}])["topics"][0]
            if all(cell["error_code"] == 0 for cell in row["partitions"]):
                break
            time.sleep(0.01)
        else:
            raise AssertionError(f"{name} has no leader: {row}")
        row = ask(connection, raw.METADATA, 12, topics=[{"name": name, "topic_id": None}],
                  allow_auto_topic_creation=False)["topics"][0]
        assert row["error_code"] == 0 and len(row["partitions"]) == partitions, row
        return row["topic_id"]


def configure_group(connection: Connection, group: str, name: str, value) -> None:
    """Set a group config, and wait until it is applied: Kafka's coordinator applies it after the
    response.
    """
    resource = {"resource_type": GROUP_CONFIG, "resource_name": group}
    answer = ask(connection, INCREMENTAL_ALTER_CONFIGS, 1, resources=[{
        **resource, "configs": [{"name": name, "config_operation": 0, "value": str(value)}]}])
    assert answer["responses"][0]["error_code"] == 0, answer
    end_s = time.monotonic() + 30
    while True:
        answer = ask(connection, DESCRIBE_CONFIGS, 1, include_synonyms=False, resources=[{
            **resource, "configuration_keys": [name]}])
        if answer["results"][0]["configs"][0]["value"] == str(value):
            break
        assert time.monotonic() < end_s, answer
        time.sleep(0.02)
    time.sleep(0.1)  # Its metadata has it first, and then its groups.


def produce(connection: Connection, topic: str, records: bytes | None, *, partition: int = 0,
            version: int = 8, acks: int = -1, transactional_id=None) -> dict:
    """Append; return the partition's part of the response."""
    body = raw.produce_body(version, topic, [(partition, records)], acks=acks,
                            transactional_id=transactional_id)
    answer = decode(raw.PRODUCE, version, connection.call(raw.PRODUCE, version, body))
    return answer["responses"][0]["partition_responses"][0]


def append(port: int, topic: str, records: bytes, partition: int = 0) -> int:
    """Append one batch that must be accepted; return its base offset."""
    with Connection(port) as connection:
        row = produce(connection, topic, records, partition=partition)
    assert row["error_code"] == 0, row
    return row["base_offset"]


def fetch(connection: Connection, topic: str, offset: int = 0, *, partition: int = 0,
          version: int = 11, partition_bytes_max: int = 1 << 26, leader_epoch: int = -1,
          **options) -> dict:
    """Fetch; return the partition's part of the response."""
    body = raw.fetch_body(version, [(topic, [(partition, offset, partition_bytes_max,
                                              leader_epoch)])], **options)
    answer = decode(raw.FETCH, version, connection.call(raw.FETCH, version, body))
    assert answer["error_code"] == 0, answer
    return answer["responses"][0]["partitions"][0]
