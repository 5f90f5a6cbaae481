"""Streams groups on the wire of a broker with ACLs: internal topics, visibility, a restart."""

import time

import pytest

from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.security import authorizer
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.api.authorization.test_rules import settings
from tests.coordinator.streams_world import codes, subtopology, told, topology
from tests.security.caller import Caller
from tests.wire.talk import create_topic, unique

NOT_YET = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
           ErrorCode.COORDINATOR_NOT_AVAILABLE)
WAIT_S = 30
FAST = {"group.streams.initial.rebalance.delay.ms": "0",
        "group.streams.assignment.interval.ms": "0", "offsets.topic.num.partitions": "2"}


def until(caller, key, request, is_so):
    """Repeat the request until the response matches."""
    end_s = time.monotonic() + WAIT_S
    while True:
        answer = caller.ask(key, 0, request)
        if is_so(answer):
            return answer
        assert time.monotonic() < end_s, answer
        time.sleep(0.05)


def joining(group: str, source: str, between: str, changelog: str):
    return messages.StreamsGroupHeartbeatRequest(
        group_id=group, member_id="m", rebalance_timeout_ms=60_000, process_id="p",
        active_tasks=[], standby_tasks=[], warmup_tasks=[], topology=topology(
            subtopology("0", [source], sinks=[between]),
            subtopology("1", repartitions=[between], changelogs=[changelog])))


def found(caller, group: str) -> None:
    caller.ask(api.FIND_COORDINATOR, 4, messages.FindCoordinatorRequest(coordinator_keys=[group]))


def described(caller, group: str):
    answer = until(caller, api.STREAMS_GROUP_DESCRIBE, messages.StreamsGroupDescribeRequest(
        group_ids=[group]), lambda answer: answer.groups[0].error_code not in NOT_YET)
    return answer.groups[0]


def test_streams_group_resumes_after_a_restart(tmp_path):
    group, names = unique("group"), [unique(stem) for stem in ("source", "between", "log")]
    with Broker(tmp_path / "data", settings=FAST) as broker:
        create_topic(broker.port, names[0], 3)
        with Caller(broker.port) as caller:
            found(caller, group)
            until(caller, api.STREAMS_GROUP_HEARTBEAT, joining(group, *names),
                  lambda answer: answer.error_code == 0 and len(told(answer)[0]) == 6)
            before = described(caller, group)
            assert before.group_state == "Stable"
        broker.restart()
        with Caller(broker.port) as caller:
            after = described(caller, group)
            # The next heartbeat looks up the partition counts of internal topics.
            after.topology = before.topology
            assert after == before
            answer = caller.ask(api.STREAMS_GROUP_HEARTBEAT, 0,
                                messages.StreamsGroupHeartbeatRequest(
                                    group_id=group, member_id="m",
                                    member_epoch=after.members[0].member_epoch))
            assert (answer.error_code, told(answer)) == (0, None)


@pytest.fixture(scope="module")
def ports():
    ports = free_port(), free_port()
    with Broker(settings=settings(ports, **FAST)):
        yield ports


def allow(ports, *rules) -> None:
    """rules: (resource type, name, operation)."""
    new = messages.CreateAclsRequest.AclCreation
    with Caller(ports[0]) as caller:
        caller.ask(api.CREATE_ACLS, 3, messages.CreateAclsRequest(creations=[new(
            resource_type=kind, resource_name=name, principal="User:alice", host="*",
            resource_pattern_type=authorizer.LITERAL, operation=operation,
            permission_type=authorizer.ALLOW) for kind, name, operation in rules]))


def test_internal_topics_are_created_with_create_permission(ports):
    group, names = unique("group"), [unique(stem) for stem in ("source", "between", "log")]
    create_topic(ports[0], names[0], 2)
    request = joining(group, *names)
    with Caller(ports[0]) as caller:
        found(caller, group)
        described(caller, group)
    with Caller(ports[1]) as alice:
        assert alice.plain("alice", "alice").error_code == 0

        def ask(is_so=lambda answer: True):
            return until(alice, api.STREAMS_GROUP_HEARTBEAT, request, is_so)

        assert ask().error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        allow(ports, (authorizer.GROUP, group, authorizer.READ))
        assert ask(lambda answer: answer.error_code != ErrorCode.GROUP_AUTHORIZATION_FAILED
                   ).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        allow(ports, *((authorizer.TOPIC, name, authorizer.DESCRIBE) for name in names))
        refused = ask(lambda answer: answer.error_code == 0)
        status, = refused.status
        assert "Unauthorized to CREATE on topics" in status.status_detail
        assert codes(refused) == [3] and told(refused) == (set(), set())
        allow(ports, *((authorizer.TOPIC, name, authorizer.CREATE) for name in names[1:]))
        answer = ask(lambda answer: codes(answer) == [])
        assert len(told(answer)[0]) == 4
        assert described(alice, group).group_state == "Stable"


def test_a_topology_of_hidden_topics_is_not_described(ports):
    group, names = unique("group"), [unique(stem) for stem in ("source", "between", "log")]
    create_topic(ports[0], names[0], 1)
    with Caller(ports[0]) as caller:
        found(caller, group)
        until(caller, api.STREAMS_GROUP_HEARTBEAT, joining(group, *names),
              lambda answer: answer.error_code == 0 and codes(answer) == [])
    with Caller(ports[1]) as alice:
        assert alice.plain("alice", "alice").error_code == 0
        assert described(alice, group).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        allow(ports, (authorizer.GROUP, group, authorizer.DESCRIBE))
        row = described(alice, group)
        assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert row.topology is None and row.members == []
        allow(ports, *((authorizer.TOPIC, name, authorizer.DESCRIBE) for name in names))
        assert [member.member_id for member in described(alice, group).members] == ["m"]


def test_failed_internal_topic_creation_is_reported(ports):
    group, names = unique("group"), [unique(stem) for stem in ("source", "between", "log")]
    create_topic(ports[0], names[0], 1)
    request = joining(group, *names)
    request.topology.subtopologies[1].state_changelog_topics[0].replication_factor = 3
    with Caller(ports[0]) as caller:
        found(caller, group)
        answer = until(caller, api.STREAMS_GROUP_HEARTBEAT, request, lambda answer: (
            answer.status and "Creation failed" in answer.status[0].status_detail))
        assert names[2] in answer.status[0].status_detail
