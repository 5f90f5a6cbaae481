"""A model of the native log's producer state, for records that arrive as real batches.

Owns: the producers of one log.
Invariants: the state depends on the log's records only.
Source: csrc/segment/producer_state.c, csrc/log/log_append.c.
"""

from collections import namedtuple

from pylog._native.log.log import LogError, SequenceError
from pylog._native.records import batch

EPOCH_CODE, SEQUENCE_CODE, STATE_CODE = 47, 45, 48
NONE = -1

Part = namedtuple("Part", ("data", "index", "header"))
Part.__doc__ = """One record of a batch that came as bytes. index: its place there."""


class Producer:
    """The state of one producer."""

    def __init__(self):
        self.epoch = self.coordinator_epoch = self.first_open = self.marker = NONE
        self.next_sequence = 0
        self.verified_epoch = NONE

    def last_batches(self) -> tuple:
        return self.epoch, self.coordinator_epoch, self.first_open, self.marker


class Producers:
    """The producers of one log."""

    def __init__(self):
        self._known: dict = {}

    def of(self, producer_id: int) -> Producer:
        return self._known.get(producer_id) or Producer()

    def guard(self, producer_id: int, epoch: int):
        """Return None if the transaction is open, else a value that must be the same at the append.
        """
        known = self.of(producer_id)
        return None if known.first_open >= 0 and known.epoch == epoch else known.marker

    def verify(self, producer_id: int, epoch: int) -> None:
        """Record the coordinator's confirmation that the open transaction contains the partition.
        """
        if producer_id in self._known:
            self._known[producer_id].verified_epoch = epoch

    def is_verified(self, producer_id: int, epoch: int) -> bool:
        """Return True if no check with the coordinator is needed although no transaction is open.
        """
        return self.of(producer_id).verified_epoch == epoch

    def check(self, header, guard) -> bool:
        """Return True if a transactional batch is new, False for a duplicate. Raises LogError."""
        known = self.of(header.producer_id)
        if header.producer_epoch < known.epoch:
            raise SequenceError(0, EPOCH_CODE, "an older epoch")
        is_fresh = header.producer_epoch > known.epoch
        if not is_fresh and header.base_sequence < known.next_sequence:
            return False
        if header.base_sequence != (0 if is_fresh else known.next_sequence):
            raise SequenceError(0, SEQUENCE_CODE, "out of sequence")
        if (is_fresh or known.first_open < 0) and guard != known.marker:
            raise LogError(0, STATE_CODE, "its transaction has ended")
        return True

    def note(self, offset: int, part: Part) -> None:
        """Update the state for an appended record."""
        header = part.header
        if not header.attributes & batch.TRANSACTIONAL:
            return
        known = self._known.setdefault(header.producer_id, Producer())
        if header.attributes & batch.CONTROL:
            if header.producer_epoch != known.epoch:
                known.epoch, known.next_sequence = header.producer_epoch, 0
            known.coordinator_epoch = coordinator_epoch_of(part)
            known.first_open, known.marker = NONE, offset
            known.verified_epoch = NONE
            return
        if header.producer_epoch != known.epoch:
            known.epoch, known.next_sequence = header.producer_epoch, 0
        if header.base_sequence >= 0:
            known.next_sequence = header.base_sequence + part.index + 1
        if known.first_open < 0:
            known.first_open = offset

    def is_open(self) -> bool:
        """Return True if any transaction is open."""
        return any(known.first_open >= 0 for known in self._known.values())


def coordinator_epoch_of(part: Part) -> int:
    (_, _, _, value, _), = batch.records(part.data)
    return int.from_bytes(value[2:6], "big", signed=True)


def parts_of(data: bytes) -> list:
    """Return the records of a batch."""
    _, header = next(batch.walk(data))
    return [Part(data, index, header) for index in range(header.last_offset_delta + 1)]


def placed(part: Part, base: int, epoch: int) -> bytes:
    """Return a record's batch as stored in a log."""
    data = part.data
    return base.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]
