"""Wait time and activity of the asynchronous consumer's poll; no broker."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.consumer import aio_consumer
from pylog.client.consumer.subscription_state import NO_POLL
from pylog.client.consumer.aio_consumer import Consumer
from pylog.client.errors import ClosedError


class Core:
    """The part of Consuming that a poll uses; `records` are available for the poll."""

    def __init__(self):
        self.closed = self.has_pending_work = self.polling = False
        # A different process id: the consumer does not close it when it is dropped.
        self.process = -1
        self.has_undelivered = False
        self.records, self.asked, self.due = [], [], None
        self.fetcher = SimpleNamespace(starved=False, poke=lambda: self.asked.append("poke"))
        self.collector = SimpleNamespace(
            records=self._taken, poll=1, undelivered_poll=NO_POLL)

    def check_topics(self):
        assert self.polling

    def polled(self):
        assert self.polling
        due, self.due = self.due, None
        return due

    def auto_commit(self, offsets):
        self.asked.append(("commit", offsets))

    async def run_pending_work(self, wait_s):
        self.asked.append(("attend", wait_s))
        self.has_pending_work = False

    def _taken(self, most):
        found, self.records = self.records[:most], self.records[most:]
        return found


@pytest.fixture
def poll(virtual_time):
    """poll(steps, **settings) runs steps(consumer, core, clock) on a virtual clock."""
    clock = virtual_time(aio_consumer)

    def run(steps, **settings):
        async def main():
            consumer = Consumer(bootstrap_servers="x:1", **settings)
            consumer._started = core = Core()
            await steps(consumer, core, clock)
            assert not core.polling

        clock.run(main())

    return run


def test_poll_waits_for_records_until_its_timeout(poll):
    async def steps(consumer, core, clock):
        assert await consumer.poll() == [] and clock.now_s == 1000
        assert await consumer.poll(3.0) == [] and clock.now_s == 1003
        assert await consumer.poll(0.25) == [] and clock.now_s == 1003.25

    poll(steps)


def test_a_poll_ends_with_the_records_that_come(poll):
    async def steps(consumer, core, clock):
        def come():
            core.records = ["a", "b", "c"]
            consumer._event.set()

        asyncio.get_running_loop().call_later(1, consumer._event.set)
        asyncio.get_running_loop().call_later(2, come)
        assert await consumer.poll(60.0) == ["a", "b"] and clock.now_s == 1002
        assert await consumer.poll(60.0, 1) == ["c"] and clock.now_s == 1002

    poll(steps, max_poll_records=2)


def test_poll_commits_due_offsets_and_handles_events_within_its_timeout(poll):
    async def steps(consumer, core, clock):
        core.due, core.has_pending_work, core.records = {"t": 5}, True, ["a"]
        core.fetcher.starved = True
        await consumer.poll(3.0)
        assert core.asked == [("commit", {"t": 5}), ("attend", 3.0), "poke"]
        await consumer.poll()
        core.fetcher.starved, core.asked[:] = False, []
        core.has_pending_work = True
        await consumer.poll(-1.0)
        assert core.asked == [("attend", 0.0)]

    poll(steps)


def test_closed_consumer_rejects_polls(poll):
    async def steps(consumer, core, clock):
        core.closed = True
        with pytest.raises(ClosedError):
            await consumer.poll(60.0)

    poll(steps)


@pytest.mark.parametrize("records", [[], ["a"]])
def test_poll_loop_yields_to_other_tasks(poll, records):
    async def steps(consumer, core, clock):
        core.records, turns = list(records), []
        asyncio.get_running_loop().call_soon(turns.append, 1)
        await consumer.poll(0.0)
        assert turns == [1]

    poll(steps)


def test_cancelled_poll_consumes_no_records(poll):
    async def steps(consumer, core, clock):
        core.records = ["a"]
        task = asyncio.create_task(consumer.poll(60.0))
        for _ in range(3):
            await asyncio.sleep(0)
            if task.cancel() and core.records:
                break
        await asyncio.gather(task, return_exceptions=True)
        assert core.records == ["a"]

    poll(steps)


def test_interceptors_receive_a_polls_records_in_turn(poll):
    async def steps(consumer, core, clock):
        core.records = ["a", "b"]
        consumer._interceptors = [
            SimpleNamespace(on_consume=lambda found: found[1:]),
            SimpleNamespace(on_consume=lambda found: [*found, "more"])]
        assert await consumer.poll(1.0) == ["b", "more"]
        assert await consumer.poll(1.0) == []

    poll(steps)


def test_callbacks_may_be_functions_or_coroutines(poll):
    async def steps(consumer, core, clock):
        seen = []

        async def later(partitions):
            await asyncio.sleep(1)
            seen.append(partitions)

        await aio_consumer._call(seen.append, ["t-0"])
        await aio_consumer._call(later, ["t-1"])
        assert seen == [["t-0"], ["t-1"]]

    poll(steps)
