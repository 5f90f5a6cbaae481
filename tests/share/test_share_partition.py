"""A share partition on a simulated log: the bytes that a member receives."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog._native.records import batch
from pylog.coordinator.share.partition_state import ShareKey, ShareState
from pylog.protocol.errors import ErrorCode
from pylog.share.in_flight import Limits, Wanted
from pylog.share.metrics import GroupMetrics
from pylog.share.share_partition import SharePartition

LIMITS = Limits(lock_ms=100, deliveries_max=3, records_max=50, renews=True)
PRODUCER = 7
ABORT_MARKER_KEY = bytes(4)


class Log:
    """batches: their bytes, by base offset."""

    start_offset = 0

    def __init__(self, batches, aborted=()):
        self.batches, self.aborted = batches, list(aborted)
        self.end = self.high_watermark = self.last_stable_offset = 1 + max(
            last for _, last in batch.edges(b"".join(batches.values()))[0])

    def read_range(self, offset, bytes_max, bound, nowait):
        return 0, 0, 0, 0, True

    def read(self, offset, bytes_max, bound):
        first = max(base for base in self.batches if base <= offset)
        return b"".join(data for base, data in self.batches.items() if base >= first)

    def bytes_from(self, offset, bound):
        return len(self.read(offset, 1, bound)) if offset < self.end else 0

    def aborted_between(self, first, end):
        return [row for row in self.aborted if row[1] < end]


class Persister:
    """Stores nothing, and starts at the log's first record."""

    async def read(self, key, leader_epoch):
        state = ShareState()
        state.start_offset = 0
        return (ErrorCode.NONE, None), state

    async def write(self, *arguments):
        return ErrorCode.NONE, None


def plain(base, count, **fields):
    return batch.build([(None, b"%d" % number, 0, ()) for number in range(count)],
                       base_offset=base, **fields)


def loaded(log, is_committed=False):
    settings = SimpleNamespace(
        limits=lambda group: LIMITS, is_committed=lambda group: is_committed)
    found = SharePartition(
        ShareKey("g", b"t" * 16, 0), log, 0, Persister(), settings, GroupMetrics(),
        lambda partition: None, lambda partition: None, lambda: 0, lambda: 0)
    asyncio.run(found.load())
    assert found.error == ErrorCode.NONE
    return found


def acquired(partition, records_max, exact=False, member="m"):
    got = asyncio.run(partition.acquire(Wanted(member, records_max, 500, exact), 1 << 20))
    return [(row.first, row.last) for row in got.rows], got.records


@pytest.fixture
def tens():
    """Three batches of ten records each."""
    return {base: plain(base, 10) for base in (0, 10, 20)}


def test_member_gets_only_batches_with_its_records(tens):
    partition = loaded(Log(tens))
    assert acquired(partition, 15) == ([(0, 19)], tens[0] + tens[10])
    assert acquired(partition, 500) == ([(20, 29)], tens[20])
    assert acquired(partition, 500) == ([], b"")


def test_single_record_batches_are_all_returned():
    ones = {base: plain(base, 1) for base in range(30)}
    partition = loaded(Log(ones))
    assert acquired(partition, 12) == ([(0, 11)], b"".join(ones[at] for at in range(12)))
    assert acquired(partition, 500) == ([(12, 29)], b"".join(ones[at] for at in range(12, 30)))


def test_batch_split_by_the_record_limit_is_sent_to_both_members(tens):
    partition = loaded(Log(tens))
    assert acquired(partition, 13, exact=True) == ([(0, 12)], tens[0] + tens[10])
    assert acquired(partition, 4, exact=True, member="n") == ([(13, 16)], tens[10])


def test_read_committed_group_does_not_deliver_aborted_records():
    data = {0: plain(0, 5, producer_id=PRODUCER, producer_epoch=0, base_sequence=0,
                     attributes=batch.TRANSACTIONAL),
            5: batch.build([(ABORT_MARKER_KEY, bytes(6), 0, ())], base_offset=5,
                           producer_id=PRODUCER, producer_epoch=0,
                           attributes=batch.TRANSACTIONAL | batch.CONTROL),
            6: plain(6, 2, producer_id=PRODUCER, producer_epoch=0, base_sequence=5,
                     attributes=batch.TRANSACTIONAL),
            8: plain(8, 2)}
    committed = loaded(Log(data, [(PRODUCER, 0)]), is_committed=True)
    assert acquired(committed, 500) == ([(5, 9)], data[5] + data[6] + data[8])
    assert committed.in_flight.start == 5
    assert acquired(loaded(Log(data, [(PRODUCER, 0)])), 500)[0] == [(0, 9)]
    assert acquired(loaded(Log(data), is_committed=True), 500)[0] == [(0, 9)]


def test_waiting_members_retry_after_reading_only_aborted_records():
    aborted = {0: plain(0, 5, producer_id=PRODUCER, producer_epoch=0, base_sequence=0,
                        attributes=batch.TRANSACTIONAL)}
    partition = loaded(Log(aborted, [(PRODUCER, 0)]), is_committed=True)
    stirred = []
    partition._stir = stirred.append
    assert acquired(partition, 500) == ([], b"")
    assert stirred == [partition] and partition.in_flight.start == 5
    assert acquired(partition, 500) == ([], b"")
    assert stirred == [partition]


def test_records_deleted_during_a_read_are_not_acquired():
    # The log's list of aborted transactions was removed with them.
    data = {0: plain(0, 5, producer_id=PRODUCER, producer_epoch=0, base_sequence=0,
                     attributes=batch.TRANSACTIONAL), 6: plain(6, 2)}
    log = Log(data)

    def going(first, end):
        log.start_offset = 6
        return []

    log.aborted_between = going
    partition = loaded(log, is_committed=True)
    assert acquired(partition, 500) == ([], b"")
    assert acquired(partition, 500) == ([(6, 7)], data[6])


@pytest.mark.parametrize("failure", [RuntimeError("a bug"), asyncio.CancelledError()])
def test_records_stay_acquired_if_their_write_failed(tens, failure):
    partition = loaded(Log(tens))
    assert acquired(partition, 10)[0] == [(0, 9)]

    async def fails(*_):
        raise failure

    partition._persister = SimpleNamespace(write=fails)
    with pytest.raises(type(failure)):
        asyncio.run(partition.acknowledge("m", [(0, 9, [1])]))
    partition._persister = Persister()
    assert asyncio.run(partition.acknowledge("m", [(0, 9, [1])])) == (ErrorCode.NONE, None)
