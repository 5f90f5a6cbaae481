"""The outcomes of batches, for waiting callers, callbacks and later queries."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from pylog.client.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from pylog.client.producer.delivery import Delivery, Pending, RecordMetadata, TableDelivery


def queue():
    return SimpleNamespace(lost_count=0, loop=None)


def pending(count=3, of=None):
    made = Pending("t", 1, of or queue(), 1, 100, 0.0)
    made.count = count
    return made


def split(whole, *sizes):
    """Split the batch into batches of these sizes."""
    made, first = [], 0
    for size in sizes:
        made.append((first, pending(size, whole.queue)))
        first += size
    whole.parts = made
    return [part for _, part in made]


@pytest.mark.parametrize("base, append_time, expected", [
    (10, -1, ("t", 1, 12, 55)), (0, -1, ("t", 1, 2, 55)), (-1, -1, ("t", 1, -1, 55)),
    (10, 77, ("t", 1, 12, 77)), (10, 0, ("t", 1, 12, 0))])
def test_delivery_reports_offset_and_log_append_time(
        base, append_time, expected):
    one = pending()
    one.complete(base, append_time)
    assert one.metadata(2, 55) == RecordMetadata(*expected)
    assert Delivery(one, 2, 55).result(0) == expected


def test_a_batch_is_completed_once():
    one = pending()
    one.complete(1)
    with pytest.raises(AssertionError, match="completed twice"):
        one.complete(2)
    assert one.base_offset == 1


def test_callbacks_get_the_outcome_and_their_errors_are_logged(caplog):
    calls = []

    def fails(*given):
        raise ValueError

    one = pending()
    one.callbacks = [(0, 5, fails), (2, 6, lambda *given: calls.append(given))]
    one.when_done(fails)
    one.when_done(lambda: calls.append(one.done))
    one.complete(10)
    assert calls == [(("t", 1, 12, 6), None), True]
    assert caplog.messages == ["a delivery callback failed"] * 2
    failure, calls[:] = KafkaError("lost"), []
    one = pending()
    one.callbacks = [(2, 6, lambda *given: calls.append(given))]
    one.complete(error=failure)
    assert calls == [(None, failure)]


def test_callback_added_after_the_outcome_is_called_at_once():
    one, calls = pending(), []
    one.complete(1)
    one.when_done(lambda: calls.append(1))
    assert calls == [1]


def test_lost_records_are_counted_once_also_of_a_batch_that_was_split():
    one = pending(3)
    one.complete(5)
    assert one.queue.lost_count == 0
    one = pending(3)
    one.complete(error=KafkaError())
    assert one.queue.lost_count == 3
    whole = pending(5)
    first, second = split(whole, 2, 3)
    first.complete(7)
    second.complete(error=KafkaError())
    whole.complete(error=second.error)
    assert whole.queue.lost_count == 3


def test_a_record_of_a_split_batch_has_the_outcome_of_its_part():
    whole, failure = pending(6), KafkaError("too large")
    first, second = split(whole, 2, 4)
    third, fourth = split(second, 1, 3)
    calls = []
    whole.callbacks = [(index, 0, lambda *given: calls.append(given)) for index in (1, 2, 3, 5)]
    first.complete(100)
    third.complete(error=failure)
    fourth.complete(200, 9)
    second.complete(error=failure)
    whole.complete(error=failure)
    assert calls == [(("t", 1, 101, 0), None), (None, failure), (("t", 1, 200, 9), None),
                     (("t", 1, 202, 9), None)]
    assert whole.leaves() == [first, third, fourth] and first.leaves() == [first]
    deliveries = [Delivery(whole, index, 0) for index in (0, 2, 4)]
    assert [one.exception(0) for one in deliveries] == [None, failure, None]
    assert deliveries[2].result(0).offset == 201
    with pytest.raises(KafkaError, match="too large"):
        deliveries[1].result(0)


def test_waiting_for_a_delivery_times_out():
    one = pending()
    assert not one.wait(0)
    for call in (lambda: one.result_of(0, 0, 0), lambda: one.exception_of(0, 0)):
        with pytest.raises(KafkaTimeoutError, match="no acknowledgement within 0"):
            call()
    waiter = threading.Thread(target=one.complete, args=(4,))
    waiter.start()
    assert one.wait() and one.result_of(1, 0, None).offset == 5
    waiter.join()


def test_task_waits_for_the_outcome_until_its_timeout():
    async def main():
        one, failure = pending(), KafkaError("lost")
        given_up, waiting = one.future(), asyncio.ensure_future(_awaited(Delivery(one, 1, 0)))
        await asyncio.sleep(0)
        given_up.cancel()
        assert not waiting.done()
        one.complete(4)
        assert (await waiting).offset == 5
        assert (await _awaited(Delivery(one, 0, 0))).offset == 4
        other = pending()
        other.complete(error=failure)
        with pytest.raises(KafkaError, match="lost"):
            await _awaited(Delivery(other, 0, 0))

    asyncio.run(main())


async def _awaited(one):
    return await one


# Tables.

def test_a_table_is_done_with_its_last_batch():
    pendings, calls = [pending(), pending(2)], []
    table = TableDelivery(pendings, 5)
    table.when_done(lambda: calls.append(1))
    pendings[1].complete(7)
    assert not table.done() and calls == []
    with pytest.raises(KafkaTimeoutError, match="no acknowledgement"):
        table.result(0)
    pendings[0].complete(3)
    assert table.done() and calls == [1]
    assert table.result(0) == [("t", 1, 3, 3), ("t", 1, 7, 2)]
    table.when_done(lambda: calls.append(2))
    assert calls == [1, 2]


def test_an_empty_table_is_done_at_once():
    calls = []
    table = TableDelivery([], 0)
    table.when_done(lambda: calls.append(1))
    assert calls == [1] and table.done() and table.result() == []


def test_a_tables_first_failure_is_raised_and_split_batches_are_named_singly():
    whole, other, failure = pending(4), pending(1), KafkaError("lost")
    first, second = split(whole, 1, 3)
    first.complete(5)
    second.complete(9)
    whole.complete()
    table = TableDelivery([whole, other], 5)

    async def main():
        waiting = asyncio.ensure_future(_awaited(table))
        await asyncio.sleep(0)
        assert not waiting.done()
        other.complete(2)
        return await waiting

    assert asyncio.run(main()) == [("t", 1, 5, 1), ("t", 1, 9, 3), ("t", 1, 2, 1)]
    other.error = failure
    for call in (lambda: table.result(0), lambda: asyncio.run(_awaited(table))):
        with pytest.raises(KafkaError, match="lost"):
            call()


def test_result_with_timeout_zero_never_blocks_the_delivering_loop():
    async def work():
        one = pending(of=SimpleNamespace(lost_count=0, loop=asyncio.get_running_loop()))
        with pytest.raises(KafkaTimeoutError, match="no acknowledgement within 0 s"):
            one.result_of(0, 5, 0)
        with pytest.raises(IllegalStateError, match="would block the event loop"):
            one.result_of(0, 5, 1)
        one.complete(7)
        assert one.result_of(0, 5, 0).offset == 7

    asyncio.run(work())
