"""Ctrl-C at every bytecode of a poll: positions never pass records that no call returned.

The consumer and its core are real; the fetcher is simulated, and there is no broker.
"""

import itertools
import linecache
import sys

import pytest

from pylog._native.records import batch
from pylog.client.background_loop import Bell, Driver, SingleUser, WorkRunner
from pylog.client.columns import arrow
from pylog.client.config.settings import CONSUMER, Settings
from pylog.client.consumer import consumer
from pylog.client.consumer.core import Consuming
from pylog.client.consumer.fetch_buffer import CompletedFetch
from pylog.client.types import TopicPartition

pytestmark = [
    pytest.mark.timeout(300),
    # An interrupt between the creation of a coroutine and its call.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")]
PARTS = [TopicPartition("t", 0), TopicPartition("t", 1)]
BATCH = 3
LAST = {"poll", "poll_arrow", "poll_numpy", "poll_columns", "__iter__"}


def is_last(frame):
    """Return True in the last line of a poll: an interrupt there is the same as one after it."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0).strip()
    return frame.f_code.co_name in LAST and line in ("return found", "yield record")


class Fetcher:
    """Queues the records after the fetch position, whenever it is poked and none are queued."""

    starved = True  # Each poll pokes it.
    isolation = False

    def __init__(self, core):
        self.core = core

    def poke(self):
        queue = self.core.queue
        for state in self.core.subscription.states.values():
            if not any(item.state is state and item.epoch == state.epoch
                       for item in list(queue.items)):
                data = batch.build([(None, b"%08d" % number, 0, []) for number in range(
                    state.fetch_position, state.fetch_position + BATCH)],
                    base_offset=state.fetch_position)
                queue.put([CompletedFetch(state, data, [], None)])
                state.fetch_position += BATCH
        self.core.notify()


@pytest.fixture(scope="module")
def driver():
    made = Driver()
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)
    made.thread.join()


@pytest.fixture
def reading(driver):
    """A Consumer of two partitions that has read one record of each."""
    made = consumer.Consumer.__new__(consumer.Consumer)
    settings = Settings(CONSUMER, {"bootstrap.servers": "x:1", "group.id": "g"})
    made.settings, made._driver, made._runner = settings, driver, WorkRunner(driver)
    made._user, made._event, made._interceptors = SingleUser("consumer"), Bell(), []
    made._records_max = 500

    async def core():
        found = Consuming(settings, made._runner.call, made._event.set)
        found.fetcher = Fetcher(found)
        for state in found.subscription.assign(PARTS):
            state.move_to(0)
        found.fetcher.poke()
        return found

    made._core = driver.run(core())
    yield made
    made._core.closed = True


class Interruption:
    """`with Interruption(at) as it:` raises KeyboardInterrupt before the at-th bytecode.

    again: raise a second one after that many further bytecodes; None: only one.
    """

    def __init__(self, at, again=None):
        self.passed, self.raised, self.where = 0, 0, []
        self.moments = {at} if again is None else {at, at + again}

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind, *rest):
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def _trace(self, frame, event, arg):
        if "pylog/client" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.passed += 1
            if self.passed in self.moments and not is_last(frame):
                self.raised += 1
                self.where.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                raise KeyboardInterrupt
        return self._trace



def of_records(found):
    return [(record.partition, record.offset) for record in found]


def of_batch(found):
    return list(zip(found.column("partition").to_pylist(), found.column("offset").to_pylist()))


# For each kind of poll: the call, and the function that converts its result to
# [(partition, offset), ...].
CALLS = {
    "poll": (lambda reader: reader.poll(5.0, 2), of_records),
    "poll_arrow": (lambda reader: reader.poll_arrow(5.0, 2), of_batch),
    "poll_numpy": (
        lambda reader: reader.poll_numpy(5.0, 2, value_dtype="<i8"),
        lambda found: list(zip(found["partition"].tolist(), found["offset"].tolist()))),
    "poll_columns": (
        lambda reader: reader.poll_columns(5.0, 2),
        lambda found: of_batch(arrow.record_batch(
            *found, arrow.ordered(["partition", "offset"])))),
    "iteration": (lambda reader: [next(iter(reader))], of_records),
}


@pytest.mark.parametrize("again", [None, 1, 9])
@pytest.mark.parametrize("name", CALLS)
def test_committed_positions_never_pass_records_that_no_call_returned(reading, name, again):
    call, rows = CALLS[name]
    ends, raised = [0, 0], 0

    def check(found):
        for partition, offset in found:
            assert offset == ends[partition], (at, ends)
            ends[partition] = offset + 1

    for at in itertools.count(1):
        found = None
        with Interruption(at, again) as interruption:
            found = call(reading)
        if found is not None:
            check(rows(found))
        raised += interruption.raised
        expected = {PARTS[number]: end for number, end in enumerate(ends)}
        committed = reading._core.commit_request().offsets
        assert {tp: given.offset for tp, given in committed.items()} == expected, interruption.where
        assert {tp: given.offset for tp, given in reading.positions().items()} == expected
        assert {tp: reading.position(tp) for tp in PARTS} == expected
        if at % 3 == 0:  # Several calls in a row may be interrupted.
            check(rows(call(reading)))
        if interruption.passed < at:
            break
    assert raised > 100
