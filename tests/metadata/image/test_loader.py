"""Committed records, records in force, and requests that wait for them."""

import asyncio

import pytest

from pylog.metadata.image.image import Image, MetadataError
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.metadata_log import MetadataBatch
from pylog.protocol import messages

BEGIN = messages.BeginTransactionRecord(name="bootstrap")
END = messages.EndTransactionRecord()
ABORT = messages.AbortTransactionRecord(reason="a new controller")


def feature(level=30):
    return messages.FeatureLevelRecord(name="metadata.version", feature_level=level)


def topic(name):
    return messages.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"-"))


def follow(tail, *records):
    tail.push(tail.fold(MetadataBatch(tail.newest.offset + len(records), 1, list(records))))


def test_committed_records_take_effect():
    tail = Tail(Image())
    follow(tail, topic("a"))
    assert "a" in tail.newest.topics and not tail.published.topics
    delta = tail.take()
    assert tail.published is tail.newest is delta.after
    assert delta.topic_ids == {topic("a").topic_id} and tail.take() is None


def test_deltas_leave_in_the_order_of_the_log():
    tail = Tail(Image())
    for name in "abc":
        follow(tail, topic(name))
    assert [list(tail.take().after.topics) for _ in range(3)] == [["a"], ["a", "b"], list("abc")]


def test_wait_for_a_record_includes_its_effects():
    async def run():
        tail = Tail(Image())
        follow(tail, topic("a"))
        follow(tail, topic("b"))
        first, second = (asyncio.ensure_future(tail.wait(offset)) for offset in (0, 1))
        await asyncio.sleep(0)
        tail.take()
        await asyncio.sleep(0)
        assert not first.done()  # Committed, but not in force yet.
        tail.applied(0)
        await first
        assert not second.done()
        tail.take()
        tail.applied(1)
        await second
        await tail.wait(1)
    asyncio.run(run())


def test_cancelled_waiter_does_not_block_others():
    async def run():
        tail = Tail(Image())
        follow(tail, topic("a"))
        gone, stays = (asyncio.ensure_future(tail.wait(0)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        tail.take()
        tail.applied(0)
        await asyncio.sleep(0)
        assert stays.done() and gone.cancelled()
    asyncio.run(run())


def test_publisher_waits_for_committed_records():
    async def run():
        tail = Tail(Image())
        grown = asyncio.ensure_future(tail.grown())
        await asyncio.sleep(0)
        assert not grown.done()
        follow(tail, topic("a"))
        await grown
        await tail.grown()  # Nothing was taken: the record remains.
    asyncio.run(run())


@pytest.mark.parametrize("ends, features", [
    ([END], {"metadata.version": 30}), ([ABORT], {}), ([], {})])
def test_transaction_over_several_reads_applies_at_its_end(ends, features):
    tail = Tail(Image())
    for record in (BEGIN, feature(), *ends):
        follow(tail, record)
    assert tail.newest.features == features
    assert tail.in_transaction == (ends == []) and tail.newest.offset == 1 + len(ends)


def test_a_replay_is_in_force_at_once():
    tail = Tail(Image())
    tail.replay([MetadataBatch(0, 1, [topic("a")]), MetadataBatch(1, 2, [topic("b")])])
    assert tail.published is tail.newest and list(tail.newest.topics) == ["a", "b"]
    assert tail.newest.epoch == 2 and tail.take() is None
    asyncio.run(tail.wait(1))


def test_a_record_that_contradicts_the_image_changes_nothing():
    tail = Tail(Image())
    follow(tail, topic("a"))
    before = tail.newest
    with pytest.raises(MetadataError, match="twice"):
        tail.fold(MetadataBatch(1, 1, [topic("a")]))
    assert tail.newest is before


def test_a_batch_that_the_image_holds_already_is_a_bug():
    tail = Tail(Image())
    follow(tail, topic("a"))
    with pytest.raises(AssertionError):
        tail.fold(MetadataBatch(0, 1, [topic("b")]))


def test_contradictory_record_does_not_change_the_transaction():
    tail = Tail(Image())
    follow(tail, topic("a"))
    follow(tail, BEGIN, topic("b"))
    for bad in ([topic("a"), END], [ABORT, topic("a")]):
        with pytest.raises(MetadataError):
            tail.fold(MetadataBatch(tail.newest.offset + 2, 1, [*bad]))
        assert tail.in_transaction
    follow(tail, END)
    assert list(tail.newest.topics) == ["a", "b"]


def test_image_inside_a_transaction_reports_it():
    tail = Tail(Image())
    for records in ([topic("a")], [BEGIN, topic("b")], [topic("c")], [END]):
        follow(tail, *records)
    amid = []
    while tail.take() is not None:
        amid.append(tail.published_in_transaction)
    assert amid == [False, True, True, False] and not tail.in_transaction
