"""Ctrl-C at every bytecode of a share consumer's poll: only records that a call returned are
accepted, and the others are released.

The consumer and its core are real; its sessions are simulated, and there is no broker.
"""

import asyncio
import itertools

import pytest

from pylog._native.records import batch
from pylog.client.background_loop import Driver, SingleUser, WorkRunner
from pylog.client.config.settings import SHARE_CONSUMER, Settings
from pylog.client.share import share_consumer
from pylog.client.share.acknowledgements import Acknowledge
from pylog.client.share.core import Sharing
from pylog.client.share.record_reader import ShareRecords
from pylog.client.share.session import Acquired
from pylog.client.types import TopicPartition
from tests.client.consumer.test_interrupted_polls import Interruption

pytestmark = [
    pytest.mark.timeout(300),
    # An interrupt between the creation of a coroutine and its call.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")]
PART = TopicPartition("t", 0)
BATCH = 3


class Membership:
    has_pending_work, polled_s, member_id = False, 0.0, "m"


class Session:
    """Acquires records when the core requests them, released ones first."""

    def __init__(self, core):
        self.core = core
        self.end, self.released, self.accepted, self.held = 0, [], set(), set()

    def fetch(self):
        if self.core._ready:
            return
        if self.released:
            first, self.released = self.released[0], self.released[1:]
            last = first
        else:
            first, last = self.end, self.end + BATCH - 1
            self.end += BATCH
        self.held.update(range(first, last + 1))
        data = batch.build([(None, b"%d" % number, 0, []) for number in range(first, last + 1)],
                           base_offset=first)
        self.core.arrived(Acquired(1, PART, data, [(first, last, 1)]))

    def acknowledge_later(self, tp, batches):
        for first, last, kind in batches:
            offsets = range(first, last + 1)
            assert self.held.issuperset(offsets), (first, last)
            self.held.difference_update(offsets)
            if kind == Acknowledge.RELEASE:
                self.released = sorted([*self.released, *offsets])
            else:
                assert kind == Acknowledge.ACCEPT
                self.accepted.update(offsets)

    async def flush(self):
        await asyncio.sleep(0)
        return []


@pytest.fixture(scope="module")
def driver():
    made = Driver()
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)
    made.thread.join()


@pytest.fixture
def reading(driver):
    settings = Settings(SHARE_CONSUMER, {"bootstrap.servers": "x:1", "group.id": "g"})
    made = share_consumer.ShareConsumer.__new__(share_consumer.ShareConsumer)
    made._driver, made._runner = driver, WorkRunner(driver)
    made._user = SingleUser("share consumer")

    async def core():
        return Sharing(settings)

    made._core = found = driver.run(core())
    found.membership = Membership()
    found.sessions[1] = Session(found)
    found._start_requests = found.sessions[1].fetch
    made._records = ShareRecords(found)
    yield made
    found.closed = True


def offsets_of(found):
    return [record.offset for record in found]


# For each kind of poll: the call, and the function that returns the offsets of its result.
CALLS = {"poll": (lambda reader: reader.poll(5.0), offsets_of),
         "poll_arrow": (lambda reader: reader.poll_arrow(5.0),
                        lambda found: found.column("offset").to_pylist()),
         "iteration": (lambda reader: [next(iter(reader))], offsets_of)}


@pytest.mark.parametrize("again", [None, 1, 9])
@pytest.mark.parametrize("name", CALLS)
def test_only_records_that_a_call_returned_are_accepted(reading, name, again):
    (call, offsets), session = CALLS[name], reading._core.sessions[1]
    seen, raised = set(), 0
    for at in itertools.count(1):
        found = None
        with Interruption(at, again) as interruption:
            found = call(reading)
        seen.update([] if found is None else offsets(found))
        raised += interruption.raised
        if at % 3 == 0:
            reading.commit()
        if at % 3 == 1:
            seen.update(offsets(call(reading)))
        assert session.accepted <= seen, (session.accepted - seen, interruption.where)
        if interruption.passed < at:
            break
    assert raised > 50
    end = session.end  # No record remains held: each is accepted or acquired again.
    while not session.accepted.issuperset(range(end)):
        assert session.end < end + 100 * BATCH, set(range(end)) - session.accepted
        seen.update(offsets_of(reading.poll(5.0)))
    assert session.accepted <= seen
