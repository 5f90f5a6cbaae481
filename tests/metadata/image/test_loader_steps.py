"""The tail of the metadata log, step by step: transactions within reads, replays, wakeups."""

import asyncio

import pytest

from pylog.metadata.image.image import Image
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.metadata_log import MetadataBatch
from tests.metadata.image.test_loader import ABORT, BEGIN, END, follow, topic


def names(tail):
    return sorted(tail.newest.topics)


@pytest.mark.parametrize(("records", "counted", "is_open"), [
    ([topic("a"), BEGIN, topic("b")], "a", True),
    ([BEGIN, topic("a"), END, topic("b")], "ab", False),
    ([BEGIN, topic("a"), ABORT, topic("b")], "b", False),
    ([BEGIN, topic("a"), BEGIN, topic("b"), END], "b", False), ([END, topic("a")], "a", False),
    ([ABORT, topic("a")], "a", False), ([BEGIN, END], "", False),
    ([BEGIN, topic("a"), END, BEGIN, topic("b")], "a", True)])
@pytest.mark.parametrize("together", [True, False])
def test_records_of_a_transaction_count_at_its_end_however_they_are_read(
        records, counted, is_open, together):
    tail = Tail(Image())
    for part in [records] if together else [[record] for record in records]:
        follow(tail, *part)
    assert names(tail) == list(counted) and tail.in_transaction == is_open
    assert tail.newest.offset == len(records) - 1


def test_records_count_in_the_order_of_the_log_around_a_transaction():
    tail = Tail(Image())
    follow(tail, topic("z"), BEGIN, topic("y"))
    follow(tail, topic("x"), END, topic("w"))
    assert list(tail.newest.topics) == list("zyxw")


def test_snapshot_replaces_all_records_including_held_ones():
    tail = Tail(Image())
    follow(tail, topic("a"), topic("b"))
    follow(tail, BEGIN, topic("c"))
    tail.replace(MetadataBatch(9, 4, [topic("b"), topic("d")]))
    assert names(tail) == ["b", "d"] and not tail.in_transaction
    assert (tail.newest.offset, tail.newest.epoch) == (9, 4)
    follow(tail, END)
    assert names(tail) == ["b", "d"]
    while (delta := tail.take()) is not None:
        assert delta.after is tail.published
    assert tail.published is tail.newest


@pytest.mark.parametrize("open_", [True, False])
def test_replay_that_ends_inside_a_transaction_reports_it(open_):
    tail = Tail(Image())
    tail.replay([MetadataBatch(1, 1, [topic("a"), BEGIN]),
                 MetadataBatch(3, 1, [topic("b"), topic("c") if open_ else END])])
    assert tail.published is tail.newest and tail.take() is None
    assert tail.published_in_transaction == tail.in_transaction == open_
    assert names(tail) == (["a"] if open_ else ["a", "b"])


def test_records_applied_at_the_start_are_not_published_again():
    async def run():
        tail = Tail(Image())
        follow(tail, topic("a"))
        follow(tail, BEGIN, topic("b"))
        waits = asyncio.ensure_future(tail.wait(2))
        await asyncio.sleep(0)
        tail.begin()
        await waits
        assert tail.take() is None and tail.published_in_transaction
        follow(tail, END)
        tail.take()
        assert not tail.published_in_transaction and tail.published is tail.newest
    asyncio.run(run())


def test_waiters_are_woken_in_offset_order_and_not_early():
    async def run():
        tail, woken = Tail(Image()), []
        for name in "abc":
            follow(tail, topic(name))
            tail.take()

        async def wait(offset):
            await tail.wait(offset)
            woken.append(offset)

        waits = [asyncio.ensure_future(wait(offset)) for offset in (2, 0, 1, 0)]
        await asyncio.sleep(0)
        tail.applied(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert woken == [0, 0]
        tail.applied(2)
        await asyncio.gather(*waits)
        assert woken == [0, 0, 1, 2]
        # An offset already in force needs no wait.
        await asyncio.wait_for(tail.wait(2), 30)
        assert tail._waiters == []
    asyncio.run(run())


@pytest.mark.parametrize("offset", [-2, 1])
def test_effects_are_ordered_with_publication(offset):
    tail = Tail(Image())
    follow(tail, topic("a"))
    follow(tail, topic("b"))
    tail.take()
    with pytest.raises(AssertionError):
        tail.applied(offset)
    tail.applied(0)
    tail.applied(0)


def test_publisher_is_woken_once_for_simultaneous_records():
    async def run():
        tail = Tail(Image())
        grown = asyncio.ensure_future(tail.grown())
        await asyncio.sleep(0)
        follow(tail, topic("a"))
        follow(tail, topic("b"))
        await grown
        tail.take()
        tail.take()
        again = asyncio.ensure_future(tail.grown())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not again.done()
        again.cancel()
        await asyncio.sleep(0)
        follow(tail, topic("c"))
        await tail.grown()
    asyncio.run(run())


def test_delta_of_another_image_is_an_assertion_error():
    tail = Tail(Image())
    early = tail.fold(MetadataBatch(0, 1, [topic("a")]))
    follow(tail, topic("b"))
    with pytest.raises(AssertionError):
        tail.push(early)
