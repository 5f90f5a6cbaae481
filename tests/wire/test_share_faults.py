"""Each field of each request about share groups changed in turn: each gets a response or a closed
connection, and the broker keeps working.
"""

import uuid

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire import fields
from tests.wire.raw import Closed, Connection
from tests.wire.sides import Side
from tests.wire.test_differential_share_groups import (
    ACCEPT, ACKNOWLEDGE, ALTER_OFFSETS, BROKER_SETTINGS, DELETE, DELETE_OFFSETS, DESCRIBE,
    DESCRIBE_OFFSETS, FETCH, HEARTBEAT, INITIALIZE, READ, SUMMARY, WRITE, Member, append_batches,
    group_of,
)

pytestmark = pytest.mark.timeout(240)
VERSIONS = {HEARTBEAT: (1,), DESCRIBE: (1,), FETCH: (1, 2), ACKNOWLEDGE: (1, 2), INITIALIZE: (0,),
            READ: (0,), WRITE: (0, 1), SUMMARY: (0, 1), DESCRIBE_OFFSETS: (0, 1),
            ALTER_OFFSETS: (0,), DELETE_OFFSETS: (0,), DELETE: (0,)}


@pytest.fixture(scope="module")
def side(tmp_path_factory):
    # The records of append_batches are old.
    with Brokerd(tmp_path_factory.mktemp("faults"), {
            **BROKER_SETTINGS, "log.retention.ms": -1}) as broker:
        made = Side(broker)
        yield made
        made.close()


class World:
    """A group with a member that has acquired records, and requests about it."""

    def __init__(self, side: Side, stem: str):
        self.topic = side.topic(f"t{stem}")
        append_batches(side, self.topic, 2, 5)
        self.group = group_of(side, f"g{stem}")
        self.member = Member(side, self.group, "m", self.topic)
        self.member.join(1)
        self.member.records("held")
        self.id = uuid.UUID(side.id_of(self.topic))

    def states(self, **more):
        return {"group_id": self.group, "topics": [{"topic_id": self.id, "partitions": [
            {"partition": 0, **more}]}]}

    def fields(self, key: int, version: int) -> dict:
        """Return the fields of a valid request."""
        acknowledged = [{"topic_id": self.id, "partitions": [{
            "partition_index": 0, "acknowledgement_batches": [{
                "first_offset": 0, "last_offset": 1, "acknowledge_types": [ACCEPT, 2]}]}]}]
        more = {"is_renew_ack": False} if version > 1 else {}
        if key == FETCH and version > 1:
            more["share_acquire_mode"] = 0
        return {
            HEARTBEAT: lambda: {
                "group_id": self.group, "member_id": "m", "member_epoch": self.member.epoch,
                "rack_id": None, "subscribed_topic_names": [self.topic]},
            DESCRIBE: lambda: {"group_ids": [self.group], "include_authorized_operations": True},
            FETCH: lambda: {
                "group_id": self.group, "member_id": "m",
                "share_session_epoch": self.member.session, "max_wait": 10, "min_bytes": 0,
                "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500,
                "forgotten_topics_data": [{"topic_id": self.id, "partitions": [0]}],
                "topics": acknowledged, **more},
            ACKNOWLEDGE: lambda: {
                "group_id": self.group, "member_id": "m",
                "share_session_epoch": self.member.session, "topics": acknowledged, **more},
            INITIALIZE: lambda: self.states(state_epoch=9, start_offset=0),
            READ: lambda: self.states(leader_epoch=0),
            WRITE: lambda: self.states(
                state_epoch=9, leader_epoch=0, start_offset=0, state_batches=[{
                    "first_offset": 0, "last_offset": 3, "delivery_state": 2,
                    "delivery_count": 1}]),
            SUMMARY: lambda: self.states(leader_epoch=0),
            DELETE: lambda: self.states(),
            DESCRIBE_OFFSETS: lambda: {"groups": [{"group_id": self.group, "topics": [
                {"topic_name": self.topic, "partitions": [0]}]}]},
            ALTER_OFFSETS: lambda: {"group_id": self.group, "topics": [
                {"topic_name": self.topic, "partitions": [
                    {"partition_index": 0, "start_offset": 1}]}]},
            DELETE_OFFSETS: lambda: {"group_id": self.group, "topics": [
                {"topic_name": self.topic}]},
        }[key]()


@pytest.mark.parametrize("key,version", [
    (key, version) for key, versions in VERSIONS.items() for version in versions])
def test_request_with_an_invalid_field_is_answered_or_disconnected(
        side, key, version):
    world = World(side, f"{key}x{version}")
    count = 0
    for label, body in fields.requests(key, version, world.fields(key, version)):
        with Connection(side.port) as connection:
            try:
                connection.call(key, version, body)
            except Closed:
                pass
        count += 1
        assert side.broker.alive, (label, side.broker.tail())
    assert count > 4
    assert side.broker.alarms() == []
    # Create new objects: share groups still work.
    World(side, f"{key}x{version}-after").member.beat(-1)
