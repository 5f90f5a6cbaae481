"""Decisions on thousands of topics and partitions do not block the event loop."""

import asyncio

import pytest

from pylog.eventloop.slices import STEPS_PER_SLICE, in_slices
from pylog.metadata.controller.partitions import elections
from pylog.metadata.controller.partitions import topics
from pylog.metadata.controller.partitions.partition_change import PREFERRED
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.memory import MemoryLog
from tests.metadata.test_service import NEW, folded, request, started

MANY = 10_000


class Turns:
    """Counts iterations of the loop, and work within each."""

    def __init__(self):
        self.count = 0
        self.most = 0
        self._in_this = 0

    def done(self):
        self._in_this += 1
        self.most = max(self.most, self._in_this)

    async def run(self):
        while True:
            self.count += 1
            self._in_this = 0
            await asyncio.sleep(0)


def counted(monkeypatch, name):
    """Counts the calls of a decision function per iteration of the loop."""
    turns, function = Turns(), getattr(topics, name)

    def counting(*args):
        turns.done()
        return function(*args)

    monkeypatch.setattr(topics, name, counting)
    return turns


async def beside(turns, coroutine):
    turning = asyncio.ensure_future(turns.run())
    try:
        return await coroutine
    finally:
        turning.cancel()


def one_of_many_partitions():
    return request("t", partitions=MANY)


def many_topics():
    return request(*[f"t{number}" for number in range(MANY)])


def many_topics_without_a_name():
    return request(*[f"?{number}" for number in range(MANY)])


def many_assignments():
    return NEW(topics=[NEW.CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1, assignments=[
            NEW.CreatableReplicaAssignment(partition_index=index, broker_ids=[1])
            for index in range(MANY)])])


@pytest.mark.parametrize("wanted, work", [
    (one_of_many_partitions, "partition_record"), (many_topics, "partition_record"),
    (many_topics_without_a_name, "topic_name_fault"), (many_assignments, "check_replicas"),
    (many_assignments, "partition_record")])
def test_a_creation_of_thousands_is_decided_in_slices(monkeypatch, wanted, work):
    async def run():
        controller = await started(MemoryLog())
        turns = counted(monkeypatch, work)
        await beside(turns, controller.create_topics(wanted()))
        assert 0 < turns.most <= STEPS_PER_SLICE < MANY // 10
        assert turns.count >= MANY // STEPS_PER_SLICE
    asyncio.run(run())


@pytest.mark.parametrize("assigned", [False, True])
def test_thousands_of_further_partitions_are_decided_in_slices(monkeypatch, assigned):
    new = messages.CreatePartitionsRequest

    async def run():
        controller = await started(MemoryLog())
        await controller.create_topics(request("t"))
        turns = counted(monkeypatch, "check_replicas" if assigned else "partition_record")
        assignments = [new.CreatePartitionsAssignment(broker_ids=[1])] * MANY if assigned else None
        await beside(turns, controller.create_partitions(new(topics=[new.CreatePartitionsTopic(
            name="t", count=MANY + 1, assignments=assignments)])))
        assert len(controller.image.topics["t"].partitions) == MANY + 1
        assert 0 < turns.most <= STEPS_PER_SLICE
    asyncio.run(run())


def test_an_election_in_thousands_of_partitions_is_decided_in_slices(monkeypatch):
    async def run():
        controller = await started(MemoryLog())
        await controller.create_topics(one_of_many_partitions())
        turns = Turns()

        class Counted(Refusal):
            def __init__(self, *args):
                turns.done()
                super().__init__(*args)

        monkeypatch.setattr(elections, "Refusal", Counted)
        await beside(turns, controller.elect_leaders(PREFERRED, None))
        assert 0 < turns.most <= STEPS_PER_SLICE
        assert turns.count >= MANY // STEPS_PER_SLICE
    asyncio.run(run())


class Charged:
    """A client's account; counts charges within an iteration of the loop."""

    def __init__(self):
        self.turns = Turns()

    def charge(self, partitions):
        self.turns.done()
        return True


def test_thousands_of_deletions_are_decided_in_slices():
    async def run():
        controller = await started(MemoryLog())
        await controller.create_topics(many_topics())
        names = [(name, bytes(16)) for name in controller.image.topics]
        account = Charged()
        await beside(account.turns, controller.delete_topics(names, account))
        assert controller.image.topics == {}
        assert 0 < account.turns.most <= STEPS_PER_SLICE
    asyncio.run(run())


def test_thousands_of_altered_resources_are_decided_in_slices(monkeypatch):
    new = messages.IncrementalAlterConfigsRequest

    async def run():
        controller = await started(MemoryLog())
        await controller.create_topics(many_topics())
        turns = counted(monkeypatch, "topic_name_fault")
        await beside(turns, controller.alter_configs(new(resources=[new.AlterConfigsResource(
            resource_type=2, resource_name=name, configs=[new.AlterableConfig(
                name="retention.ms", config_operation=0, value="5000")])
            for name in controller.image.topics]), True))
        assert all(controller.image.topic_config(name) for name in controller.image.topics)
        assert 0 < turns.most <= STEPS_PER_SLICE
    asyncio.run(run())


def test_decisions_during_a_long_one_wait_and_see_its_result():
    async def run():
        log = MemoryLog()
        controller = await started(log)
        long, short, deletion = await asyncio.gather(
            controller.create_topics(request(*[f"t{number}" for number in range(2000)])),
            controller.create_topics(request("t1999")),
            controller.delete_topics([("t1998", bytes(16))]))
        assert {result.error for result in long} == {E.NONE}
        assert short[0].error == E.TOPIC_ALREADY_EXISTS and deletion[0].error == E.NONE
        assert len(controller.image.topics) == 1999
        assert folded(log) == controller.image
    asyncio.run(run())


def test_cancelled_long_decision_leaves_no_changes():
    async def run():
        log = MemoryLog()
        controller = await started(log)
        before = log.end
        asking = asyncio.ensure_future(controller.create_topics(many_topics()))
        for _ in range(5):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert log.end == before
        assert (await controller.create_topics(request("t0")))[0].error == E.NONE
    asyncio.run(run())


def test_short_decision_completes_without_a_loop_iteration():
    def steps():
        for _ in range(STEPS_PER_SLICE - 1):
            yield
        return "decided"

    try:
        in_slices(steps()).send(None)
    except StopIteration as end:
        assert end.value == "decided"
    else:
        raise AssertionError("it paused")


def test_rejected_decision_raises_in_the_caller():
    def steps():
        yield
        raise Refusal(E.INVALID_REQUEST, "no")

    with pytest.raises(Refusal):
        asyncio.run(in_slices(steps()))
