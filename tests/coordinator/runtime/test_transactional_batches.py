"""Markers that a log rejects, and parsing of transactional batches."""

import pytest

from pylog._native.records import batch
from pylog.coordinator.runtime.transactional_batches import Marker, TransactionalRecords, read
from pylog.protocol.errors import ErrorCode

EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED
LAST = 2**15 - 1


@pytest.mark.parametrize("version, epoch, known, error", [
    (0, 3, (-1, -1, -1, -1), 0), (0, 3, (3, 5, 0, -1), 0), (0, 3, (4, 5, 0, -1), EPOCH),
    (0, 3, (2, 5, 0, -1), 0), (0, 3, (3, 6, 0, -1), FENCED), (0, 3, (3, 4, 0, -1), 0),
    # The transaction is open in the marker's epoch: its records have an earlier epoch.
    (2, 3, (3, 5, 0, -1), EPOCH), (2, 3, (3, 5, 9, -1), EPOCH), (1, 3, (3, 5, 9, -1), 0),
    (2, 3, (3, 5, -1, 9), 0), (2, 3, (2, 5, 9, -1), 0), (3, 3, (3, 5, 9, -1), EPOCH),
    # After the last epoch there is no higher epoch.
    (2, LAST, (LAST, 5, 9, -1), 0), (2, LAST - 1, (LAST - 1, 5, 9, -1), EPOCH)])
def test_markers_of_older_producer_or_coordinator_epochs_are_rejected(
        version, epoch, known, error):
    assert Marker(7, epoch, 5, True, version).fault(known) == error


def head_and_rows(data):
    return next(batch.walk(data))[1], batch.records(data)


@pytest.mark.parametrize("committed", [True, False])
def test_marker_is_one_control_record(committed):
    header, rows = head_and_rows(Marker(7, 3, 5, committed, 2).batch(9))
    assert header.attributes == batch.TRANSACTIONAL | batch.CONTROL and len(rows) == 1
    assert rows[0][3] == b"\0\0\0\0\0\5"
    assert read(header, rows) == Marker(7, 3, -1, committed, 0)


def test_records_of_a_transaction_have_its_producer_and_the_codec_of_the_setting():
    made = TransactionalRecords(7, 3, [(b"k" * 100, b"v" * 100), (b"l", None)])
    header, rows = head_and_rows(made.batch(9, 1))
    assert header.attributes == batch.TRANSACTIONAL | 1
    assert read(header, rows) == made


def test_record_without_a_key_is_not_transactional():
    header, rows = head_and_rows(batch.build(
        [(None, b"v", 9, ()), (b"k", b"v", 9, ())], producer_id=7, producer_epoch=3,
        attributes=batch.TRANSACTIONAL))
    assert read(header, rows) == TransactionalRecords(7, 3, [(b"k", b"v")])


@pytest.mark.parametrize("keys", [(b"\0\0\0\2",), (b"\0\0\0\1", b"\0\0\0\1"), (b"",)])
def test_a_control_batch_that_is_no_marker_ends_nothing(keys):
    header, rows = head_and_rows(batch.build(
        [(key, b"", 9, ()) for key in keys], producer_id=7, producer_epoch=3,
        attributes=batch.TRANSACTIONAL | batch.CONTROL))
    assert read(header, rows) is None
