"""Fetches with a replica id, in the old field and in the tagged field of KIP-903."""

import uuid

import pytest

from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection, batch, record
from tests.wire.talk import append, create_topic, unique

NOT_LEADER, UNKNOWN_LEADER_EPOCH = 6, 75


@pytest.fixture(scope="module")
def topic(target):
    name = unique("replicas")
    topic_id = create_topic(target.port, name)
    append(target.port, name, batch([record(value=b"x")]))
    return uuid.UUID(topic_id)


@pytest.mark.parametrize("version", [13, 14, 15, 16, 17])
@pytest.mark.parametrize("replica_id", [-1, 1, 77])
@pytest.mark.parametrize("leader_epoch", [-1, 0])
def test_replica_fetches_require_replica_permission(
        target, topic, version, replica_id, leader_epoch):
    said = {"replica_state": {"replica_id": replica_id, "replica_epoch": -1}} \
        if version >= 15 else {"replica_id": replica_id}
    with Connection(target.port) as connection:
        answer = ask(connection, raw.FETCH, version, max_wait=0, min_bytes=0,
                     max_bytes=1 << 20, isolation_level=0, session_id=0, session_epoch=-1,
                     topics=[{"topic_id": topic, "partitions": [{
                         "partition": 0, "current_leader_epoch": leader_epoch, "fetch_offset": 0,
                         "last_fetched_epoch": -1, "log_start_offset": -1,
                         "partition_max_bytes": 1 << 20}]}],
                     forgotten_topics_data=[], rack_id="", **said)
    row = answer["responses"][0]["partitions"][0]
    assert row["error_code"] == (
        0 if replica_id < 0 else NOT_LEADER if leader_epoch < 0 else UNKNOWN_LEADER_EPOCH)
    assert bool(row["records"]) == (replica_id < 0)
