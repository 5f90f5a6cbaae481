"""A twin of what the native log knows of producers whose records come as real batches.

Owns: the state of one log's producers.
Invariants: (1) it follows from the records that the log holds.
Source: csrc/log/producers.c, csrc/log/log_append.c.
"""

from collections import namedtuple

from pylog._native import batch
from pylog._native.log import LogError, SequenceError

EPOCH_CODE, SEQUENCE_CODE, STATE_CODE = 47, 45, 48
NONE = -1

Part = namedtuple("Part", ("data", "index", "header"))
Part.__doc__ = """One record of a batch that came as bytes. index: its place there."""


class Producer:
    """What of one."""

    def __init__(self):
        self.epoch = self.coordinator_epoch = self.first_open = self.marker = NONE
        self.next_sequence = 0
        self.verified_epoch = NONE

    def told(self) -> tuple:
        return self.epoch, self.coordinator_epoch, self.first_open, self.marker


class Producers:
    """Of one log."""

    def __init__(self):
        self._known: dict = {}

    def of(self, producer_id: int) -> Producer:
        return self._known.get(producer_id) or Producer()

    def guard(self, producer_id: int, epoch: int):
        """None: its transaction is open; else what must be the same when a record of it comes."""
        known = self.of(producer_id)
        return None if known.first_open >= 0 and known.epoch == epoch else known.marker

    def verify(self, producer_id: int, epoch: int) -> None:
        """Its coordinator has the partition in the open transaction."""
        if producer_id in self._known:
            self._known[producer_id].verified_epoch = epoch

    def is_verified(self, producer_id: int, epoch: int) -> bool:
        """Whether the coordinator need not be asked, though no transaction is open."""
        return self.of(producer_id).verified_epoch == epoch

    def check(self, header, guard) -> bool:
        """Whether a batch of a transaction is new; False: it is here. Raises LogError."""
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
        """A record stands in the log."""
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
        """Whether some transaction is."""
        return any(known.first_open >= 0 for known in self._known.values())


def coordinator_epoch_of(part: Part) -> int:
    (_, _, _, value, _), = batch.records(part.data)
    return int.from_bytes(value[2:6], "big", signed=True)


def parts_of(data: bytes) -> list:
    """The records of a batch."""
    _, header = next(batch.walk(data))
    return [Part(data, index, header) for index in range(header.last_offset_delta + 1)]


def placed(part: Part, base: int, epoch: int) -> bytes:
    """The batch of a record as it stands in a log."""
    data = part.data
    return base.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]
