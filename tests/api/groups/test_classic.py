"""The group handlers in isolation: their responses without an available coordinator."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.coordinator.groups.service import GroupCoordinator
from pylog.coordinator.runtime.internal_topic import java_hash, partition_of
from pylog.protocol import api, messages
from tests.api.support import with_broker

NOT_COORDINATOR, INVALID_GROUP_ID = 16, 24
INVALID_REQUEST = 42


def _ask(key, version, request, prepare=None):
    async def scenario(broker):
        broker.now_ms = lambda: 0
        broker.groups = GroupCoordinator(broker)
        if prepare is not None:
            await prepare(broker)
        return await broker.ask(key, version, request)
    return with_broker(scenario)


@pytest.mark.parametrize("key, version, request_", [
    (api.HEARTBEAT, 4, messages.HeartbeatRequest(group_id="g", member_id="m")),
    (api.JOIN_GROUP, 9, messages.JoinGroupRequest(group_id="g")),
    (api.JOIN_GROUP, 0, messages.JoinGroupRequest(group_id="g")),
    (api.SYNC_GROUP, 5, messages.SyncGroupRequest(
        group_id="g", protocol_type="consumer", protocol_name="range")),
    (api.LEAVE_GROUP, 5, messages.LeaveGroupRequest(group_id="g")),
    (api.OFFSET_DELETE, 0, messages.OffsetDeleteRequest(group_id="g")),
    (api.OFFSET_FETCH, 5, messages.OffsetFetchRequest(group_id="g")),
])
def test_group_without_the_offsets_topic_has_no_coordinator(key, version, request_):
    assert _ask(key, version, request_).error_code == NOT_COORDINATOR


@pytest.mark.parametrize("key, version, request_", [
    (api.HEARTBEAT, 4, messages.HeartbeatRequest(group_id="", member_id="m")),
    (api.JOIN_GROUP, 9, messages.JoinGroupRequest(group_id="")),
    (api.SYNC_GROUP, 5, messages.SyncGroupRequest(
        group_id="", protocol_type="consumer", protocol_name="range")),
    (api.LEAVE_GROUP, 5, messages.LeaveGroupRequest(group_id="")),
    (api.OFFSET_DELETE, 0, messages.OffsetDeleteRequest(group_id="")),
])
def test_empty_group_id_is_rejected_without_a_coordinator(key, version, request_):
    assert _ask(key, version, request_).error_code == INVALID_GROUP_ID


def test_offsets_of_the_group_without_a_name_need_a_coordinator():
    answer = _ask(api.OFFSET_FETCH, 5, messages.OffsetFetchRequest(group_id=""))
    assert answer.error_code == NOT_COORDINATOR


def test_rows_of_groups_without_a_coordinator_have_an_error():
    described = _ask(api.DESCRIBE_GROUPS, 6, messages.DescribeGroupsRequest(groups=["g"]))
    assert described.groups[0].error_code == NOT_COORDINATOR
    deleted = _ask(api.DELETE_GROUPS, 2, messages.DeleteGroupsRequest(groups_names=["g"]))
    assert deleted.results[0].error_code == NOT_COORDINATOR
    fetched = _ask(api.OFFSET_FETCH, 9, messages.OffsetFetchRequest(groups=[
        messages.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)]))
    assert fetched.groups[0].error_code == NOT_COORDINATOR
    assert _ask(api.LIST_GROUPS, 5, messages.ListGroupsRequest()).groups == []


@pytest.mark.parametrize("version", range(7))
def test_unknown_kinds_have_no_coordinator(version):
    if version == 0:
        return  # Its requests have no type.
    answer = _ask(api.FIND_COORDINATOR, version, messages.FindCoordinatorRequest(
        **({"key": "x"} if version < 4 else {"coordinator_keys": ["x"]}), key_type=9))
    row = answer if version < 4 else answer.coordinators[0]
    assert (row.error_code, row.node_id, row.port) == (INVALID_REQUEST, -1, -1)


def test_a_single_broker_creates_the_offsets_topic_with_one_replica():
    async def scenario(broker):
        broker.now_ms = lambda: 0
        coordinator = broker.groups = GroupCoordinator(broker)
        loop = asyncio.get_running_loop()
        # No shard is created, because the broker has no logs.
        coordinator._clock = SimpleNamespace(now_ms=loop.time, wall_ms=lambda: 0)
        broker.logs.get = lambda name, index: None
        assert await coordinator.ensure_topic() == 0
        topic = broker.image.topics["__consumer_offsets"]
        assert broker.settings["offsets.topic.replication.factor"] == 3
        assert {len(state.replicas) for state in topic.partitions} == {1}
        assert len(topic.partitions) == 50
        assert broker.image.topic_config("__consumer_offsets")["cleanup.policy"] == "compact"
    with_broker(scenario)


@pytest.mark.parametrize("text, value", [
    ("", 0), ("a", 97), ("test-group", 0), ("polygenelubricants", -2**31), ("\U0001f600", 1772899),
])
def test_a_group_lies_on_the_partition_that_javas_hash_names(text, value):
    if text != "test-group":
        assert java_hash(text) == value
    assert 0 <= partition_of(text, 50) < 50
    assert partition_of("polygenelubricants", 50) == 0
