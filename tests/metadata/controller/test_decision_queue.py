"""The queue of decisions, the fate of their records, and waiting requests."""

import asyncio

import pytest

from pylog._native.log.log import StorageError
from pylog.metadata.controller import decision_queue
from pylog.metadata.controller.decision_queue import Decider, after
from pylog.metadata.controller.partitions.partition_change import RECOVERING
from pylog.metadata.image.image import Image, MetadataError
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.metadata_log import NotController
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.memory import MemoryLog
from tests.metadata.virtual import run

NO_OP = messages.NoOpRecord


class Snapshots(MemoryLog):
    """`saved`: [(offset, epoch)]; `trimmed`: the offsets; `due`: from which offset a snapshot is
    due.
    """

    records_between_snapshots = 100
    metadata_version = None

    def __init__(self):
        super().__init__()
        self.saved, self.trimmed, self.due = [], [], 1 << 60
        self.failure = None

    def snapshot_is_due(self, offset):
        return offset >= self.due

    def snapshot(self, records, offset, epoch):
        if self.failure is not None:
            raise self.failure
        self.saved.append((offset, epoch))

    def trim(self, offset):
        self.trimmed.append(offset)

    def append(self, records, epoch, expected_end):
        if self.failure is not None and self.due == 1 << 60:
            raise self.failure
        return super().append(records, epoch, expected_end)


def in_office(log=None):
    log = log or Snapshots()
    made = Decider(log, Tail(Image()), {}, None, 1)
    made._begin_term(log.elect(1))
    return made, log


def decision(*records, result="result"):
    def steps():
        yield
        return list(records), result
    return steps


def topics(count, partitions):
    """Return the records of `count` topics."""
    records = []
    for number in range(count):
        id_ = (number + 1).to_bytes(16, "big")
        records += [messages.TopicRecord(name=f"t{number}", topic_id=id_), messages.ConfigRecord(
            resource_type=2, resource_name=f"t{number}", name="x", value="1")]
        records += [messages.PartitionRecord(topic_id=id_, partition_id=index, replicas=[1],
                                             isr=[1], leader=1) for index in range(partitions)]
    return records


def test_decision_returns_the_offset_at_which_it_takes_effect():
    async def go(loop):
        made, log = in_office()
        assert await made._decided(decision(NO_OP(), NO_OP())) == ("result", 1)
        assert await made._decided(decision(NO_OP(), result=7)) == (7, 2)
        assert await made._decided(decision()) == ("result", 2)
        assert [len(batch.records) for batch in log.batches] == [2, 1]
        assert (made.epoch, made.log, made.is_active) == (1, log, True)

    run(go)


def test_inactive_controller_decides_nothing_before_and_after_its_term():
    async def go(loop):
        made = Decider(Snapshots(), Tail(Image()), {}, None, 1)
        assert (made.epoch, made.is_active) == (-1, False)
        with pytest.raises(NotController):
            await made._decided(decision())
        made, log = in_office()
        made.resign()
        for _ in range(2):  # A rejected decision does not block the queue either.
            with pytest.raises(NotController):
                await made._decided(decision(NO_OP()))
        await made.resigned()
        assert not log.batches

    run(go)


def test_controller_term_ends_after_the_decision_in_progress():
    async def go(loop):
        made, log = in_office()
        under_way = loop.create_task(made._decided(decision(NO_OP())))
        await asyncio.sleep(0)
        made.resign()
        await made.resigned()
        assert len(log.batches) == 1
        assert (await under_way)[1] == 0

    run(go)


def test_rejected_decision_releases_its_turn():
    async def go(loop):
        made, log = in_office()

        def refused():
            yield
            raise Refusal(E.INVALID_REQUEST, "no")
        with pytest.raises(Refusal):
            await made._decided(refused)
        assert await made._decided(decision(NO_OP())) == ("result", 0)

    run(go)


@pytest.mark.parametrize(("topic_count", "partitions", "most", "sizes"), [
    (1, 1, 10, [3]), (3, 1, 3, [3, 3, 3]), (3, 1, 4, [6, 3]), (2, 5, 1, [7, 7]), (2, 4, 1, [6, 6]),
    (4, 1, 6, [6, 6]), (4, 1, 100, [12])])
def test_many_records_are_appended_in_stretches_that_cut_no_topic(
        monkeypatch, topic_count, partitions, most, sizes):
    monkeypatch.setattr(decision_queue, "RECORDS_PER_APPEND_MAX", most)
    records = topics(topic_count, partitions)

    async def go(loop):
        made, log = in_office()
        await made._decided(decision(*records))
        assert [len(batch.records) for batch in log.batches] == sizes
        assert [record for batch in log.batches for record in batch.records] == records

    run(go)


def test_failed_append_is_reported_to_watchers_and_changes_nothing():
    async def go(loop):
        made, log = in_office()
        log.failure = StorageError(5, 0, "planted")
        with pytest.raises(StorageError):
            await made._decided(decision(NO_OP()))
        assert made.append_failed.is_set() and made._image.offset == -1
        log.failure = None
        assert (await made._decided(decision(NO_OP())))[1] == 0

    run(go)


def test_a_record_is_written_in_the_version_that_the_cluster_is_at():
    async def go(loop):
        made, log = in_office()
        await made._decided(decision(
            messages.FeatureLevelRecord(name="metadata.version", feature_level=25)))
        assert log.metadata_version == decision_queue.snapshot.NEWEST_VERSION
        await made._decided(decision(NO_OP()))
        assert log.metadata_version == 25

    run(go)


def test_elections_are_counted_by_whether_records_may_be_lost():
    def change(**fields):
        return messages.PartitionChangeRecord(
            partition_id=0, topic_id=(1).to_bytes(16, "big"), **fields)

    async def go(loop):
        made, _ = in_office()
        await made._decided(decision(*topics(1, 1)))
        assert made.elections == {"clean": 0, "unclean": 0}
        await made._decided(decision(
            change(leader=0), change(leader=-1), change(isr=[1]), change(leader=2),
            change(leader=1, leader_recovery_state=RECOVERING)))
        assert made.elections == {"clean": 2, "unclean": 1}

    run(go)


def test_due_snapshot_is_written_and_the_log_trimmed():
    async def go(loop):
        made, log = in_office()
        log.due = 2
        await made._decided(decision(NO_OP(), NO_OP()))
        assert log.saved == []
        await made._decided(decision(NO_OP()))
        assert (log.saved, log.trimmed) == ([(2, 1)], [3])

    run(go)


def test_failed_snapshot_is_retried_after_one_snapshot_interval():
    async def go(loop):
        made, log = in_office()
        log.due, log.failure = 0, StorageError(5, 0, "planted")
        assert (await made._decided(decision(NO_OP())))[1] == 0
        log.failure = None
        await made._decided(decision(*[NO_OP()] * 99))
        assert log.saved == []
        await made._decided(decision(NO_OP()))
        assert log.saved == [(100, 1)]

    run(go)


def test_no_snapshot_is_taken_during_a_transaction():
    async def go(loop):
        made, log = in_office()
        log.due = 0
        await made._decided(decision(messages.BeginTransactionRecord(name="t"), NO_OP()))
        assert log.saved == []
        await made._decided(decision(messages.EndTransactionRecord()))
        assert log.saved == [(2, 1)]

    run(go)


def test_wait_for_records_ends_when_they_exist():
    async def go(loop):
        made, _ = in_office()
        began_s = loop.time()
        await made.committed_beyond(-1, 3600)  # already committed
        waiting = [loop.create_task(made.committed_beyond(offset, 3600)) for offset in (0, 0, 1)]
        await made._decided(decision(NO_OP()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [True, True, False]
        await made._decided(decision(NO_OP()))
        await waiting[2]
        assert loop.time() - began_s < 1

    run(go)


@pytest.mark.parametrize("grows_meanwhile", [False, True])
def test_wait_for_records_ends_at_its_timeout(grows_meanwhile):
    async def go(loop):
        made, _ = in_office()
        began_s = loop.time()
        waiting = loop.create_task(made.committed_beyond(9, 2.5))
        if grows_meanwhile:
            await asyncio.sleep(1)
            await made._decided(decision(NO_OP()))
        await waiting
        assert loop.time() - began_s == pytest.approx(2.5)
        await made.committed_beyond(9, 0)
        assert loop.time() - began_s == pytest.approx(2.5)

    run(go)


def test_wait_for_records_ends_with_the_term():
    async def go(loop):
        made, _ = in_office()
        began_s = loop.time()
        waiting = loop.create_task(made.committed_beyond(0, 3600))
        await asyncio.sleep(1)
        assert not waiting.done()
        made.resign()
        await waiting
        assert loop.time() - began_s < 2
        await made.committed_beyond(0, 3600)  # no active controller
        assert loop.time() - began_s < 2

    run(go)


def test_the_image_after_a_decision_is_at_the_offset_of_its_last_record():
    image = Image(offset=4, epoch=2)
    assert after(image, []) is image
    made = after(image, [messages.FeatureLevelRecord(name="x", feature_level=3),
                         NO_OP()])
    assert (made.offset, made.epoch, made.features) == (6, 2, {"x": 3})


def test_records_that_contradict_the_image_are_rejected_and_not_appended():
    async def go(loop):
        made, log = in_office()
        unknown = messages.PartitionRecord(topic_id=bytes(15) + b"u", partition_id=0)
        with pytest.raises(MetadataError, match="unknown topic id"):
            await made._decided(decision(NO_OP(), unknown))
        assert await made._decided(decision(NO_OP())) == ("result", 0)
    run(go)


def test_a_transaction_that_the_log_refuses_has_not_begun():
    async def go(loop):
        made, log = in_office()
        log.failure = StorageError(0, 56, "no room")
        with pytest.raises(StorageError):
            await made._decided(decision(messages.BeginTransactionRecord(name=None)))
        assert not made._tail.in_transaction
    run(go)
