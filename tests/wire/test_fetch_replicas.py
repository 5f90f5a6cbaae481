"""Fetches of whoever says that it is a replica, in the field of old and in the tag of KIP-903."""

import uuid

import pytest

from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection, batch, record
from tests.wire.talk import append, create_topic, unique

NOT_LEADER = 6


@pytest.fixture(scope="module")
def topic(brokerd):
    name = unique("replicas")
    topic_id = create_topic(brokerd.port, name)
    append(brokerd.port, name, batch([record(value=b"x")]))
    return uuid.UUID(topic_id)


@pytest.mark.parametrize("version", [13, 14, 15, 16, 17])
@pytest.mark.parametrize("replica_id", [-1, 1, 77])
def test_only_who_is_no_replica_is_given_records(brokerd, topic, version, replica_id):
    said = {"replica_state": {"replica_id": replica_id, "replica_epoch": -1}} \
        if version >= 15 else {"replica_id": replica_id}
    with Connection(brokerd.port) as connection:
        answer = ask(connection, raw.FETCH, version, max_wait=0, min_bytes=0,
                     max_bytes=1 << 20, isolation_level=0, session_id=0, session_epoch=-1,
                     topics=[{"topic_id": topic, "partitions": [{
                         "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0,
                         "last_fetched_epoch": -1, "log_start_offset": -1,
                         "partition_max_bytes": 1 << 20}]}],
                     forgotten_topics_data=[], rack_id="", **said)
    row = answer["responses"][0]["partitions"][0]
    assert row["error_code"] == (0 if replica_id < 0 else NOT_LEADER)
    assert bool(row["records"]) == (replica_id < 0)
