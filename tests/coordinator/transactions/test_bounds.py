"""Transactional ids at their boundaries: allowed requests, records, and unchanged state."""

import pytest

from pylog.coordinator.transactions import transaction_metadata
from pylog.coordinator.transactions.shard import Ending, NeedProducerId, Overdue
from pylog.coordinator.transactions.transaction_metadata import Transaction, decode
from pylog.protocol import messages
from pylog.protocol.errors import ProtocolError
from tests.coordinator.transactions.test_shard import (
    AT,
    BUSY,
    FENCED,
    ID,
    MAPPING,
    MORE,
    STATE,
    V1,
    Side,
    begun,
)

INVALID, TIMEOUT = 42, 50


def last(side) -> Transaction:
    """Return the content of the last record."""
    return decode(*side.log[-1])[1]


# ---- InitProducerId -----------------------------------------------------------------------------

@pytest.mark.parametrize("timeout_ms, found", [
    (-1, TIMEOUT), (0, TIMEOUT), (1, (7, 0)), (60_000, (7, 0)), (60_001, TIMEOUT)])
def test_timeout_must_be_positive_and_at_most_the_brokers_limit(timeout_ms, found):
    side = Side()
    assert side.init(timeout_ms=timeout_ms) == found
    assert bool(side.log) == bool(side.state_machine.transactions) == (found != TIMEOUT)


@pytest.mark.parametrize("timeout_ms", [0, 60_001])
def test_two_phases_make_a_timeout_meaningless(timeout_ms):
    side = Side(has_two_phases=True)
    assert side.init(timeout_ms=timeout_ms, enable2_pc=True) == (7, 0)
    assert last(side).timeout_ms == transaction_metadata.TIMEOUT_NEVER


def test_rejected_init_returns_no_producer_id():
    side = Side()
    answer = side.state_machine.init(messages.InitProducerIdRequest(
        transactional_id=ID, enable2_pc=True))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (53, -1, -1)


def test_init_after_a_completed_transaction_resets_its_state():
    side, producer = begun()
    side.end(producer)
    side.complete()
    side.ms += 5
    assert side.init(timeout_ms=2_000) == (7, 2)
    found = last(side)
    assert (found.state, found.start_ms, found.update_ms) == ("Empty", -1, 1_005)
    assert (found.timeout_ms, found.epoch, found.last_epoch) == (2_000, 2, -1)


@pytest.mark.parametrize("epoch, found", [
    (32_765, FENCED), (32_766, (8, 0)), (32_767, (8, 0))])
def test_former_owner_of_a_producer_id_continues_only_from_its_last_epochs(epoch, found):
    """The new id was assigned at the end of a transaction, whose response was lost."""
    side = Side()
    side.init()
    held = side.state_machine.transactions[ID]
    held.previous_producer_id, held.producer_id, held.epoch, held.last_epoch = 7, 8, 0, epoch
    assert side.init((7, epoch)) == found


def test_wrong_epoch_of_an_exhausted_id_uses_no_new_id():
    side = Side()
    side.init()
    held = side.state_machine.transactions[ID]
    held.epoch, held.last_epoch = 32_766, 32_765
    assert side.init((7, 32_765)) == (7, 32_766)
    assert next(side.ids) == 8


def test_unknown_transactional_id_gets_a_new_producer_id():
    side = Side()
    assert side.init((3, 5)) == (7, 0)
    assert last(side).last_epoch == -1


@pytest.mark.parametrize("level", [0, 2])
def test_fenced_producer_is_rejected(level):
    side, producer = begun(Side(level), version=level)
    assert side.init() == BUSY
    side.complete()
    assert side.init() == (7, 2)
    assert side.init(producer) == FENCED
    assert side.init((7, 2)) == (7, 3)


def test_below_the_level_that_bumps_a_fenced_producer_has_no_last_epoch():
    side, _ = begun(Side(0), version=V1)
    assert side.init() == BUSY
    assert (last(side).state, side.state_machine.transactions[ID].last_epoch) == ("PrepareAbort",
                                                                                  -1)


@pytest.mark.parametrize("producer", [(-1, -1), (7, 0)])
def test_prepared_transaction_is_not_reassigned(producer):
    side, first = begun()
    side.end(first)
    written = list(side.log)
    assert side.init(producer) in (BUSY, FENCED)
    assert side.log == written and side.state == "PrepareCommit"


# ---- partitions ---------------------------------------------------------------------------------

def test_adding_partitions_keeps_the_transactions_start_time():
    side, producer = begun()
    written, side.ms = len(side.log), 1_200
    assert side.add(producer, AT) == 0
    found = last(side)
    assert len(side.log) == written + 1
    assert (found.start_ms, found.update_ms, found.partitions) == (1_000, 1_200, {AT})
    side.ms = 1_400
    assert side.add(producer, AT, MORE) == 0
    found = last(side)
    assert (found.start_ms, found.update_ms, found.partitions) == (1_000, 1_400, {AT, MORE})
    side.wait(599)
    assert side.state == "Ongoing"
    side.wait(1)
    assert side.state == "PrepareAbort"


@pytest.mark.parametrize("version, again", [(V1, 1), (2, 0)])
def test_repeated_end_with_an_unknown_epoch_is_written_before_its_response(version, again):
    side, producer = begun(Side(version), version)
    assert side.end(producer, version=version) == ((-1, -1) if version == V1 else (7, 1))
    side.complete()
    written = len(side.log)
    side.end(producer, version=version)
    assert len(side.log) == written + again and last(side).state == "CompleteCommit"


def test_each_transaction_has_a_separate_timeout():
    side, producer = begun()
    producer = side.end(producer)
    side.wait(2_000)
    assert side.state == "PrepareCommit"
    side.complete()
    side.ms += 100
    assert side.add(producer) == 0
    assert last(side).start_ms == 3_100 and last(side).version == 2
    side.wait(999)
    assert side.state == "Ongoing"
    side.wait(1)
    assert side.state == "PrepareAbort"


def test_unknown_transactional_id_is_rejected_and_not_created():
    side = Side()
    assert side.state_machine.add("", 7, 0, [AT], 2) == INVALID
    assert side.state_machine.verify("", 7, 0, [AT]) == {AT: INVALID}
    assert side.state_machine.end("", 7, 0, True, 2).error_code == INVALID
    answer = side.state_machine.end(ID, 7, 0, True, 2)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (MAPPING, -1, -1)
    assert not side.state_machine.transactions and not side.state_machine.records


def test_to_verify_changes_nothing():
    side, producer = begun()
    written = list(side.log)
    side.ms += 10
    side.state_machine.verify(ID, *producer, [AT, MORE])
    side.take()
    assert side.log == written and side.state_machine.transactions[ID].partitions == {AT}


# ---- end ----------------------------------------------------------------------------------------

def test_aborting_an_unstarted_transaction_starts_and_ends_at_once():
    side = Side()
    producer = side.init()
    side.ms += 7
    assert side.end(producer, False) == (7, 1)
    assert (last(side).start_ms, last(side).update_ms) == (1_007, 1_007)


def test_end_of_a_started_transaction_keeps_its_start_time():
    side, producer = begun()
    side.ms += 7
    side.end(producer)
    found = last(side)
    assert (found.start_ms, found.update_ms, found.partitions) == (1_000, 1_007, {AT})
    side.ms += 3
    side.complete()
    found = last(side)
    assert (found.start_ms, found.update_ms, found.partitions) == (1_000, 1_010, set())


def test_aborted_transaction_can_be_aborted_again_but_not_committed():
    side, producer = begun()
    assert side.end(producer, False) == (7, 1)
    assert side.end(producer, False) == BUSY
    assert side.end(producer, True) == STATE
    side.complete()
    assert side.state == "CompleteAbort"
    assert side.end(producer, False) == (7, 1)
    assert side.end(producer, True) == FENCED
    assert side.end((7, 1), True) == STATE
    assert side.end((7, 1), False) == (7, 2)


@pytest.mark.parametrize("epoch", [1, 2])
def test_only_the_epoch_before_is_believed_while_it_ends(epoch):
    side, producer = begun()
    side.end(producer)
    assert side.end((7, epoch)) == FENCED
    assert side.end((8, 0)) == MAPPING


def test_an_epoch_that_is_long_past_ends_nothing():
    side, producer = begun()
    for _ in range(2):
        side.end(producer)
        side.complete()
        producer = producer[0], producer[1] + 1
        side.add(producer)
    assert side.end((7, 1)) == FENCED and side.end((7, 3)) == FENCED
    assert side.state == "Ongoing"


@pytest.mark.parametrize("producer, error", [((8, 0), MAPPING), ((7, 1), FENCED)])
def test_old_client_with_another_epoch_cannot_end_the_transaction(producer, error):
    side, _ = begun(version=V1)
    assert side.end(producer, version=V1) == error
    assert side.state == "Ongoing" and not side.sent


def test_markers_that_were_for_something_else_complete_nothing():
    side, producer = begun()
    side.end(producer)
    ending = side.sent[0]
    for other in (ending._replace(producer_id=8), ending._replace(epoch=2),
                  ending._replace(transactional_id="other")):
        side.state_machine.complete(other)
    assert side.state == "PrepareCommit" and not side.state_machine.records
    side.state_machine.complete(ending)
    assert side.state == "CompleteCommit"
    side.take()
    side.state_machine.complete(ending)
    assert not side.state_machine.records


def test_new_producer_id_is_returned_before_and_used_after_the_markers():
    side = Side()
    side.init()
    side.state_machine.transactions[ID].epoch = 32_766
    side.add((7, 32_766))
    assert side.end((7, 32_766)) == (8, 0)
    assert (last(side).producer_id, last(side).next_producer_id) == (7, 8)
    side.complete()
    found = last(side)
    assert (found.producer_id, found.next_producer_id, found.epoch) == (8, -1, 0)
    assert found.previous_producer_id == 7
    assert side.end((7, 32_765)) == MAPPING


def test_second_to_last_epoch_keeps_the_producer_id():
    side = Side()
    side.init()
    side.state_machine.transactions[ID].epoch = 32_765
    side.add((7, 32_765))
    assert side.end((7, 32_765)) == (7, 32_766)
    assert next(side.ids) == 8


# ---- timeouts -----------------------------------------------------------------------------------

def test_unfenceable_transaction_requests_a_new_id_every_second():
    side = Side()
    side.init()
    side.state_machine.transactions[ID].epoch = 32_766
    side.add((7, 32_766))
    side.wait(1_000)
    assert side.sent == [Overdue(ID, 1_000)]
    side.wait(999)
    assert len(side.sent) == 1
    side.wait(1)
    assert side.sent == [Overdue(ID, 1_000)] * 2


@pytest.mark.parametrize("overdue", [Overdue(ID, 999), Overdue("other", 1_000)])
def test_timeout_of_an_earlier_transaction_does_not_abort_a_later_one(overdue):
    side, _ = begun()
    side.state_machine.abort_overdue(overdue, 8)
    assert side.state == "Ongoing"


def test_transaction_that_expired_during_a_restart_is_aborted_at_the_next_check():
    side, _ = begun()
    side.ms += 5_000
    side.restart()
    assert side.state_machine.timers.next_ms() == side.ms
    side.wait(0)
    assert side.state == "PrepareAbort"


def test_expiry_checks_a_thousand_ids_and_skips_prepared_ones():
    side, producer = begun(Side(expiration_ms=500))
    side.end(producer)
    for number in range(1_500):
        side.state_machine.transactions[str(number)] = Transaction(str(number), number, 1, 500)
    side.ms += 10**6
    expiring = side.state_machine.expire()
    next(expiring)
    assert len(side.state_machine.transactions) == 1_501 - 999
    list(expiring)
    assert list(side.state_machine.transactions) == [ID]


def test_new_state_machine_has_no_pending_transactions():
    state_machine = Side().state_machine
    assert (state_machine.records, state_machine.responses, state_machine.cleanups) == ([], [], 0)
    assert state_machine.timers.next_ms() is None and list(state_machine.open_tokens()) == []


# ---- records ------------------------------------------------------------------------------------

@pytest.mark.parametrize("level, version", [(0, 0), (1, 1), (2, 1)])
def test_the_feature_level_names_the_version_of_a_record(level, version):
    side = Side(level)
    side.init()
    assert side.log[-1][1][:2] == version.to_bytes(2, "big")


def test_an_empty_transaction_has_no_list_of_partitions():
    """Kafka writes null, and its former content is ignored."""
    side = Side(0)
    side.init()
    assert b"\xff\xff\xff\xff" in side.log[-1][1]
    assert last(side).partitions == set()


@pytest.mark.parametrize("number", [8, 127])
def test_a_state_that_no_kafka_writes_is_not_read(number):
    made = Transaction(ID, 7, 900, 5)
    made.epoch = 0
    value = bytearray(transaction_metadata.value_of(made, 0))
    at = 2 + 8 + 2 + 4
    assert value[at] == 0
    value[at] = number
    with pytest.raises(ProtocolError):
        decode(transaction_metadata.key_of(ID), bytes(value))


@pytest.mark.parametrize("epoch, used_up", [
    (-1, False), (32_765, False), (32_766, True), (32_767, True)])
def test_last_epoch_is_reserved_for_fencing(epoch, used_up):
    made = Transaction(ID, 7, 900, 5)
    made.epoch = epoch
    assert made.is_exhausted == used_up


def test_partitions_are_listed_by_topic():
    made = Transaction(ID, 7, 900, 5)
    made.partitions = {("b", 1), ("a", 2), ("a", 0)}
    assert made.topics() == [("a", [0, 2]), ("b", [1])]


def test_request_for_a_producer_id_changes_nothing():
    side = Side()
    request = messages.InitProducerIdRequest(
        transactional_id=ID, transaction_timeout_ms=1_000, producer_id=-1, producer_epoch=-1)
    assert side.state_machine.init(request) is NeedProducerId
    assert not side.state_machine.transactions and not side.state_machine.records


def test_markers_are_requested_in_order_for_each_partition():
    side, producer = begun()
    side.add(producer, ("a", 9), MORE)
    side.end(producer, False)
    assert side.sent == [Ending(ID, 7, 1, False, (("a", 9), AT, MORE), 2)]
