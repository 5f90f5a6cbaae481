"""Group faults: forced rebalances and expired sessions."""

import gc
import os

import pytest

from pylog.testing import Broker, BrokerFailed, ports
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.test_groups import HEARTBEAT, _member, _ready

REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID = 27, 25


@pytest.fixture
def joined(broker):
    broker.create_topic("t")
    _ready(broker.port, "g")
    return broker, *_member(broker.port, "g")


def _heartbeat(broker, member, generation) -> int:
    with Connection(broker.port) as connection:
        return ask(connection, HEARTBEAT, 3, group_id="g", member_id=member,
                   generation_id=generation)["error_code"]


def test_a_forced_rebalance_reaches_the_members_by_their_heartbeat(joined):
    broker, member, generation = joined
    assert _heartbeat(broker, member, generation) == 0
    broker.group("g").rebalance()
    assert broker.group("g").state == "PreparingRebalance"
    assert _heartbeat(broker, member, generation) == REBALANCE_IN_PROGRESS


def test_expired_member_is_unknown(joined):
    broker, member, generation = joined
    broker.group("g").expire_session(member)
    assert broker.group("g").members() == {}
    assert _heartbeat(broker, member, generation) == UNKNOWN_MEMBER_ID


def test_stopped_broker_with_groups_closes_descriptors_without_garbage_collection():
    def used() -> int:
        with Broker() as broker:
            _ready(broker.port, "g")
            _member(broker.port, "g")
        # Reserved ports belong to the process.
        return len(os.listdir("/proc/self/fd")) - len(ports._claims)

    used()
    gc.collect()
    gc.disable()
    try:
        first = used()
        assert used() == first
    finally:
        gc.enable()


def test_a_group_without_members_cannot_be_disturbed(broker):
    with pytest.raises(BrokerFailed, match="no members"):
        broker.group("g").rebalance()
    with pytest.raises(BrokerFailed, match="no members"):
        broker.group("g").expire_session()


def test_an_unknown_group_is_dead_and_empty(broker):
    group = broker.group("never")
    assert (group.state, group.members(), group.offsets()) == ("Dead", {}, {})
