"""Transactional batches: records that become visible at commit, and the markers that end a
transaction.

Owns: nothing.
Invariants: a marker is one control record of version 0 in a batch without a sequence number.
Source: KIP-98; KIP-890 (a version 2 marker has a higher epoch than its records); KAFKA-19999 (a
  repeated marker is accepted again).
"""

from typing import Any, NamedTuple

from pylog._native.records import batch
from pylog.protocol import messages
from pylog.protocol.codec import program
from pylog.protocol.errors import Error, ErrorCode

EPOCH_MAX = 2**15 - 1
EPOCH_BUMP_SINCE = 2  # The transaction.version that bumps the epoch with every transaction.
ABORT_KEY = b"\0\0\0\0"
COMMIT_KEY = b"\0\0\0\1"
UNKNOWN = -1, -1, -1, -1  # The result of producer_of() for an unknown producer.


class TransactionalRecords(NamedTuple):
    """Records [(key, value or None)] that become visible when the transaction commits."""

    producer_id: int
    epoch: int
    records: list[tuple[bytes, bytes | None]]

    def batch(self, now_ms: int, codec: int) -> bytes:
        return batch.build(
            [(key, value, now_ms, ()) for key, value in self.records], codec=codec,
            producer_id=self.producer_id, producer_epoch=self.epoch, attributes=batch.TRANSACTIONAL)


class Marker(NamedTuple):
    """The end of a producer's transaction. version: the transaction version."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    committed: bool
    version: int

    def batch(self, now_ms: int, codec: int = 0) -> bytes:
        """Return the control batch. Control batches are never compressed."""
        value = program("EndTxnMarker", 0).encode(
            messages.EndTxnMarker(coordinator_epoch=self.coordinator_epoch), b"\0\0")
        return batch.build(
            [(COMMIT_KEY if self.committed else ABORT_KEY, value, now_ms, ())],
            producer_id=self.producer_id, producer_epoch=self.epoch,
            attributes=batch.TRANSACTIONAL | batch.CONTROL)

    def fault(self, known: tuple[int, int, int, int]) -> Error:
        """Return the error if the log must reject this marker, or NONE.

        known: the result of producer_of().
        """
        epoch, coordinator_epoch, first_open, _ = known
        if self.epoch < epoch or (
                self.version >= EPOCH_BUMP_SINCE and self.epoch == epoch and first_open >= 0
                and epoch != EPOCH_MAX):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.coordinator_epoch < coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.NONE


def read(header: Any, rows: list[Any]) -> "TransactionalRecords | Marker | None":
    """Parse a transactional batch; return None for a control batch that ends no transaction.

    header: batch.Header. rows: the batch's records, as _native.records.batch returns them.
    """
    if not header.attributes & batch.CONTROL:
        return TransactionalRecords(header.producer_id, header.producer_epoch, [
            (row[2], row[3]) for row in rows if row[2] is not None])
    if len(rows) != 1 or rows[0][2] not in (ABORT_KEY, COMMIT_KEY):
        return None
    return Marker(header.producer_id, header.producer_epoch, -1, rows[0][2] == COMMIT_KEY, 0)
