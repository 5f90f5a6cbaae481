from types import SimpleNamespace

import pytest

from pylog.config import Settings
from pylog.eventloop.slices import in_slices
from pylog.metadata.controller.partitions import elections, reassignments
from pylog.metadata.controller.partitions.partition_change import PREFERRED, UNCLEAN, Rules
from pylog.metadata.controller.partitions.partitions import Outcome
from pylog.metadata.image.image import apply
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from tests.api.cluster.test_configs import make
from tests.api.support import with_broker


async def grow(broker, count, name="t", **options):
    new = messages.CreatePartitionsRequest
    answer = await broker.ask(api.CREATE_PARTITIONS, 3, new(
        topics=[new.CreatePartitionsTopic(name=name, count=count, assignments=None)],
        **{"timeout_ms": 1000, **options}))
    return answer.results[0].error_code


def test_topic_growth_updates_logs_and_invalidates_its_grant():
    async def scenario(broker):
        await make(broker)
        assert await grow(broker, 3) == 0
        assert len(broker.image.topics["t"].partitions) == 3
        assert len(broker.logs.topics["t"][1]) == 3
        assert set(broker.followers.void) == {"t"}
    with_broker(scenario)


@pytest.mark.parametrize("count, error", [(1, 37), (0, 37), (-1, 37), (10_002, 44)])
def test_partition_count_must_increase_within_the_limit(count, error):
    async def scenario(broker):
        await make(broker)
        assert await grow(broker, count) == error
        assert len(broker.image.topics["t"].partitions) == 1
    with_broker(scenario)


def test_validate_only_adds_no_partitions():
    async def scenario(broker):
        await make(broker)
        broker.followers.void.clear()
        assert await grow(broker, 5, validate_only=True) == 0
        assert len(broker.image.topics["t"].partitions) == 1
        assert broker.followers.void == []
    with_broker(scenario)


def change(image, topic, **fields):
    record = messages.PartitionChangeRecord(
        partition_id=0, topic_id=image.topics[topic].id, **fields)
    return apply(image, [record], image.offset + 1, image.epoch)


def test_partition_without_a_leader_gets_its_preferred_leader():
    async def scenario(broker):
        await make(broker)
        image = change(broker.image, "t", leader=-1)
        records, results = await in_slices(
            elections.elect_leaders(Rules(image, Settings()), PREFERRED, None))
        assert results == [("t", [(0, Outcome())])]
        assert [record.leader for record in records] == [1]
    with_broker(scenario)


def test_unclean_election_selects_an_out_of_sync_replica():
    async def scenario(broker):
        await make(broker)
        image = change(broker.image, "t", leader=-1, isr=[])
        _, refused = await in_slices(
            elections.elect_leaders(Rules(image, Settings()), PREFERRED, [("t", [0])]))
        assert refused[0][1][0][1].error == 80
        records, _ = await in_slices(
            elections.elect_leaders(Rules(image, Settings()), UNCLEAN, [("t", [0])]))
        assert (records[0].leader, list(records[0].isr)) == (1, [1])
    with_broker(scenario)


def test_replica_on_a_failed_disk_is_not_elected():
    async def scenario(broker):
        await make(broker)
        image, lost = change(broker.image, "t", leader=-1), {(1, "t", 0)}
        for election, error in ((PREFERRED, 80), (UNCLEAN, 83)):
            records, results = await in_slices(
                elections.elect_leaders(Rules(image, Settings(), lost), election, [("t", [0])]))
            assert not records and results[0][1][0][1].error == error
    with_broker(scenario)


def test_a_reassignment_that_only_drops_replicas_is_done_at_once():
    async def scenario(broker):
        await make(broker)
        image = change(broker.image, "t", replicas=[1, 2])
        wanted = SimpleNamespace(partition_index=0, replicas=[1])
        asked = [SimpleNamespace(name="t", partitions=[wanted])]
        records, _ = reassignments.alter(Rules(image, Settings()), asked, True)
        image = apply(image, records, image.offset + 1, image.epoch)
        state = image.partition("t", 0)
        assert (state.replicas, state.removing_replicas) == ((1,), ())
        assert reassignments.under_way(image, None) == []
        wanted.replicas = None
        records, results = reassignments.alter(Rules(image, Settings()), asked, True)
        assert not records
        assert results[0][1][0][1].error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    with_broker(scenario)


def test_partitions_are_not_added_after_the_timeout():
    async def scenario(broker):
        await make(broker)
        before = len(broker.image.topics["t"].partitions)
        assert await grow(broker, before + 2, timeout_ms=0) == ErrorCode.REQUEST_TIMED_OUT
        assert len(broker.image.topics["t"].partitions) == before
    with_broker(scenario)
