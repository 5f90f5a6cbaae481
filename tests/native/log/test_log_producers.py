"""Idempotent producers: which batches the log accepts, recognises as duplicates and rejects."""

import struct

import pytest

from pylog._native.log import log
from tests.native.log.test_log import NOW, checkpoint_of, make, opened

INT_MAX = 2**31 - 1


@pytest.fixture
def one(tmp_path):
    return opened(log.LogDir(tmp_path, 1))


def send(one, sequence, count=1, *, epoch=0, producer=7, size=10):
    made = make(count, size=size, producer_id=producer, producer_epoch=epoch,
                base_sequence=sequence)
    return one.append(made, NOW)


def refused(one, *args, **kwargs):
    with pytest.raises(log.SequenceError) as caught:
        send(one, *args, **kwargs)
    return caught.value.code


def test_duplicates_of_the_last_five_batches_return_their_first_offset(one):
    for sequence in range(0, 14, 2):
        assert send(one, sequence, 2) == (sequence, sequence + 1)
    for sequence in range(4, 14, 2):
        assert send(one, sequence, 2) == (sequence, sequence + 1)
    assert one.end_offset == 14
    assert refused(one, 2, 2) == 45


def test_the_same_sequence_with_another_payload_is_not_stored(one):
    send(one, 0)
    size = one.size_bytes
    assert send(one, 0, size=99) == (0, 0)
    assert one.size_bytes == size


def test_gap_and_part_of_a_known_batch_are_out_of_order(one):
    send(one, 0, 3)
    assert refused(one, 4) == 45
    assert refused(one, 0, 2) == 45
    assert refused(one, 1, 2) == 45
    assert send(one, 3) == (3, 3)


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one(one):
    send(one, 0, 3, epoch=1)
    assert refused(one, 3, epoch=2) == 45
    assert send(one, 0, epoch=4) == (3, 3)
    assert refused(one, 3, epoch=1) == 47
    assert send(one, 1, epoch=4) == (4, 4)


def test_unknown_producer_can_start_at_any_sequence(one):
    assert send(one, 4711) == (0, 0)
    assert send(one, 4712) == (1, 1)
    assert refused(one, 4714) == 45


def test_sequences_wrap_to_zero(one):
    assert send(one, INT_MAX - 2, 2) == (0, 1)
    assert send(one, INT_MAX, 4) == (2, 5)
    assert send(one, INT_MAX, 4) == (2, 5)
    assert send(one, 3) == (6, 6)
    assert refused(one, 5) == 45


def test_producers_do_not_disturb_each_other(one):
    for turn in range(200):
        for producer in range(30):
            send(one, turn, producer=producer)
    assert refused(one, 0, producer=3) == 45
    assert one.end_offset == 6000


def test_idle_producers_expire(tmp_path):
    one = opened(log.LogDir(tmp_path, 1), config={"producer.id.expiration.ms": 1000})
    send(one, 0)
    one.expire_producers(NOW + 500)
    assert refused(one, 5) == 45
    one.expire_producers(NOW + 2000)
    assert send(one, 5) == (1, 1)


def test_producer_without_an_epoch_can_continue_with_any_sequence(one):
    send(one, 0, epoch=-1)
    assert send(one, 5, epoch=-1) == (1, 1)
    assert send(one, 5, epoch=-1) == (1, 1)
    assert send(one, 3, 2, epoch=0) == (2, 3)
    assert refused(one, 9, epoch=0) == 45


def test_producer_state_survives_a_clean_stop_and_epochs_stay_fenced(tmp_path):
    directory = log.LogDir(tmp_path, 1)
    one = opened(directory)
    send(one, INT_MAX, 2, epoch=3)
    one.close(NOW)
    again = opened(directory, recovery_point=2)
    assert send(again, INT_MAX, 2, epoch=3) == (0, 1)
    assert refused(again, 0, epoch=2) == 47
    assert send(again, 1, epoch=3) == (2, 2)


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("recovered", [False, True])
def test_every_possible_duplicate_is_recognised_after_a_restart(tmp_path, count, recovered):
    directory = log.LogDir(tmp_path, 1)
    one = opened(directory)
    for sequence in range(0, 10, 2):
        send(one, sequence, 2, producer=8)
    for sequence in range(count):
        assert send(one, sequence) == (10 + sequence, 10 + sequence)
    checkpoint = {"recovery_point": one.end_offset} if recovered else checkpoint_of(one)
    one.close(NOW)
    again = opened(directory, **checkpoint)
    kept = range(max(0, count - 5), count)
    assert [send(again, sequence) for sequence in kept] == [(10 + at, 10 + at) for at in kept]
    if count > 5:
        assert refused(again, count - 6) == 45
    assert again.end_offset == 10 + count
    # New ones evict the oldest, also those that the restart restored.
    for sequence in range(count, count + 3):
        send(again, sequence)
    kept = range(max(0, count - 2), count + 3)
    assert [send(again, sequence) for sequence in kept] == [(10 + at, 10 + at) for at in kept]


def test_any_number_of_aborted_transactions_is_returned(one, tmp_path):
    send(one, 0, 3000)
    rows = [(7, at, at + 1, at + 2) for at in range(0, 3000, 2)]
    (tmp_path / "t-0" / f"{0:020}.txnindex").write_bytes(
        b"".join(struct.pack(">hqqqq", 0, *row) for row in rows))
    assert one.aborted_between(0, 3000) == [(7, at) for at in range(0, 3000, 2)]
