"""Transactional ids as a state machine: responses and records."""

from types import SimpleNamespace

import pytest

from pylog.coordinator.transactions import transaction_metadata
from pylog.coordinator.transactions.shard import (
    Ending,
    Limits,
    NeedProducerId,
    Overdue,
    Transactions,
)
from pylog.coordinator.transactions.transaction_metadata import Transaction, decode
from pylog.protocol import messages

ID, AT, MORE = "app", ("orders", 0), ("orders", 1)
FENCED, MAPPING, STATE, BUSY, ABORTABLE = 90, 49, 48, 51, 120
V1, V2 = 0, 2


class Side:
    """A machine, its clock, its records and messages."""

    def __init__(self, level=2, **limits):
        self.ms = 1_000
        self.level = level
        self.clock = SimpleNamespace(now_ms=lambda: self.ms, wall_ms=lambda: self.ms)
        self.limits = Limits(**{"timeout_ms_max": 60_000, "expiration_ms": 1_000_000,
                                "has_two_phases": False, **limits})
        self.ids = iter(range(7, 100))
        self.log, self.sent = [], []
        self.state_machine = self._new()

    def _new(self):
        return Transactions(self.limits, self.clock, "outbox", lambda: self.level)

    def _call(self, step, *arguments):
        found = step(*arguments)
        if found is NeedProducerId:
            found = step(*arguments, next(self.ids))
        self.take()
        return found

    def take(self):
        state_machine = self.state_machine
        self.log += state_machine.records
        self.sent += [message for _, message in state_machine.responses]
        state_machine.records, state_machine.responses = [], []

    def init(self, producer=(-1, -1), timeout_ms=1_000, **more):
        found = self._call(self.state_machine.init, messages.InitProducerIdRequest(
            transactional_id=ID, transaction_timeout_ms=timeout_ms, producer_id=producer[0],
            producer_epoch=producer[1], **more))
        return found.error_code or (found.producer_id, found.producer_epoch)

    def add(self, producer, *partitions, version=V2):
        return self._call(self.state_machine.add, ID, *producer, partitions or (AT,), version)

    def end(self, producer, committed=True, version=V2):
        found = self._call(self.state_machine.end, ID, *producer, committed, version)
        return found.error_code or (found.producer_id, found.producer_epoch)

    def complete(self):
        self.state_machine.complete(self.sent.pop())
        self.take()

    @property
    def state(self):
        return self.state_machine.transactions[ID].state

    def wait(self, ms):
        self.ms += ms
        self.state_machine.tick()
        self.take()

    def restart(self):
        self.sent = []
        self.state_machine = self._new()
        for key, value in self.log:
            self.state_machine.replay(key, value)
        self.state_machine.loaded()
        self.take()


def begun(side=None, version=V2):
    side = side or Side()
    producer = side.init()
    assert side.add(producer, version=version) == 0
    return side, producer


def test_each_init_of_an_id_fences_the_producer_before():
    side = Side()
    assert [side.init() for _ in range(3)] == [(7, 0), (7, 1), (7, 2)]
    assert side.add((7, 1)) == FENCED
    assert side.end((7, 1)) == FENCED


def test_init_raises_the_epoch_and_a_retry_gets_the_same_response():
    side = Side()
    assert side.init() == (7, 0)
    assert side.init((7, 0)) == (7, 1)
    assert side.init((7, 0)) == (7, 1)
    assert side.init((8, 0)) == FENCED
    side.init()
    assert side.init((7, 1)) == FENCED


@pytest.mark.parametrize("fields, error", [
    ({"timeout_ms": 0}, 50), ({"timeout_ms": 60_001}, 50), ({"enable2_pc": True}, 53),
    ({"keep_prepared_txn": True}, 35)])
def test_excessive_init_timeout_is_rejected(fields, error):
    assert Side().init(**fields) == error


def test_two_phases_have_no_timeout():
    side = Side(has_two_phases=True)
    producer = side.init(enable2_pc=True)
    side.add(producer)
    side.wait(10**9)
    assert side.state == "Ongoing"


def test_commit_writes_markers_with_the_bumped_epoch_and_completes():
    side, producer = begun()
    side.add(producer, MORE)
    assert side.end(producer) == (7, 1)
    assert side.sent == [Ending(ID, 7, 1, True, (AT, MORE), 2)]
    assert side.state == "PrepareCommit"
    side.complete()
    assert side.state == "CompleteCommit"
    assert side.end(producer) == (7, 1)  # The response was lost.
    assert side.end(producer, False) == STATE


def test_old_clients_keep_their_epoch():
    side, producer = begun(version=V1)
    assert side.end(producer, version=V1) == (-1, -1)
    assert side.sent[-1] == Ending(ID, 7, 0, True, (AT,), 0)
    assert side.end(producer, version=V1) == BUSY
    side.complete()
    assert side.end(producer, version=V1) == (-1, -1)
    assert side.end(producer, False, version=V1) == STATE


def test_nothing_begun_cannot_be_committed_but_a_new_client_may_abort_it():
    side = Side()
    producer = side.init()
    assert side.end(producer) == STATE
    assert side.end(producer, False, version=V1) == STATE
    assert side.end(producer, False) == (7, 1)
    assert side.sent[-1].partitions == ()
    side.complete()
    assert side.state == "CompleteAbort"


def test_requests_during_an_ending_are_rejected():
    side, producer = begun()
    side.end(producer)
    assert side.add((7, 1)) == BUSY
    assert side.init() == BUSY
    assert side.end(producer) == BUSY
    side.complete()
    assert side.add((7, 1)) == 0


@pytest.mark.parametrize("producer, error", [((7, 1), FENCED), ((8, 0), MAPPING)])
def test_foreign_producer_is_not_part_of_the_transaction(producer, error):
    side, _ = begun()
    assert side.add(producer) == error
    assert side.end(producer) == error
    assert side.state_machine.verify(ID, *producer, [AT]) == {AT: error}


def test_each_partition_is_verified_separately():
    side, producer = begun()
    assert side.state_machine.verify(ID, *producer, [AT, MORE]) == {AT: 0, MORE: ABORTABLE}
    assert side.state_machine.verify("other", *producer, [AT]) == {AT: MAPPING}


@pytest.mark.parametrize("level, epoch", [(2, 1), (0, 1)])
def test_open_transaction_is_aborted_before_its_id_is_reused(level, epoch):
    side, _ = begun(Side(level))
    assert side.init() == BUSY
    assert side.sent == [Ending(ID, 7, epoch, False, (AT,), level)]
    side.complete()
    assert side.init() == (7, 2)


def test_timed_out_transaction_is_aborted_and_its_producer_fenced():
    side, producer = begun()
    side.wait(999)
    assert side.state == "Ongoing"
    side.wait(1)
    assert side.state == "PrepareAbort"
    side.complete()
    assert side.add(producer) == FENCED


def test_a_commit_that_meets_the_abort_of_its_timeout_is_fenced():
    side, producer = begun()
    side.wait(1000)
    assert side.end(producer) == STATE
    side.complete()
    assert side.state == "CompleteAbort"
    assert side.end(producer) == FENCED
    assert side.end(producer, committed=False) == (7, producer[1] + 1)


def test_restart_continues_prepared_transactions_with_the_remaining_time():
    side, producer = begun()
    side.ms += 600
    side.restart()
    side.wait(399)
    assert side.state == "Ongoing"
    side.wait(1)
    sent = list(side.sent)
    side.restart()
    assert side.sent == sent and side.state == "PrepareAbort"
    side.complete()
    side.restart()
    assert side.state == "CompleteAbort" and not side.sent


def test_an_epoch_that_is_used_up_is_followed_by_a_new_producer_id():
    side = Side()
    side.init()
    side.state_machine.transactions[ID].epoch = 32_766
    assert side.init((7, 32_766)) == (8, 0)
    assert side.init((7, 32_766)) == (8, 0)  # The response was lost.
    side.state_machine.transactions[ID].epoch = 32_766
    side.add((8, 32_766))
    assert side.end((8, 32_766)) == (9, 0)
    assert side.sent[-1][1:3] == (8, 32_767)
    side.complete()
    assert side.end((8, 32_766)) == (9, 0)
    assert side.add((9, 0)) == 0


def test_timeout_at_the_last_epoch_requests_a_new_producer_id():
    side = Side()
    side.init()
    side.state_machine.transactions[ID].epoch = 32_766
    side.add((7, 32_766))
    side.wait(2_000)
    overdue, = side.sent
    assert isinstance(overdue, Overdue) and side.state == "Ongoing"
    side.state_machine.abort_overdue(overdue, next(side.ids))
    assert side.state == "PrepareAbort"
    side.state_machine.abort_overdue(overdue, next(side.ids))
    side.take()
    assert len(side.sent) == 2


def test_unused_transactional_id_expires_but_an_open_one_does_not():
    side, producer = begun(Side(expiration_ms=500, timeout_ms_max=10**6))
    side.ms += 500
    list(side.state_machine.expire())
    assert ID in side.state_machine.transactions
    side.end(producer)
    side.complete()
    side.ms += 499
    list(side.state_machine.expire())
    assert ID in side.state_machine.transactions
    side.ms += 1
    list(side.state_machine.expire())
    assert side.state_machine.records == [(transaction_metadata.key_of(ID), None)]
    side.take()
    side.restart()
    assert not side.state_machine.transactions


@pytest.mark.parametrize("level", range(3))
def test_a_record_is_read_as_it_was_written(level):
    made = Transaction(ID, 7, 900, 5)
    made.epoch, made.partitions = 3, {AT, MORE, ("others", 4)}
    made.state, made.start_ms = "PrepareCommit", 2
    if level:
        made.previous_producer_id, made.next_producer_id, made.version = 6, 8, 2
    id_, found = decode(transaction_metadata.key_of(ID), transaction_metadata.value_of(made, level))
    assert id_ == ID and transaction_metadata.vars_of(found) == transaction_metadata.vars_of(made)
    assert decode(transaction_metadata.key_of(ID), None) == (ID, None)
    assert decode(b"\0\x63", b"") is None
