"""The state of one transactional id, in memory and as a record of `__transaction_state`.

Owns: the state of the transactional id.
Invariants: decoding an encoded transaction gives an equal one, except for fields that value version
  0 lacks; only Ongoing and Prepare states have partitions; the epoch increases while the producer
  id stays, and a new producer id starts at epoch 0.
Source: KIP-98, KIP-360 (the last epoch), KIP-890 (epoch bump per transaction, next producer id).
"""

from pylog.coordinator.runtime.transactional_batches import EPOCH_MAX
from pylog.protocol import messages, records
from pylog.protocol.errors import ProtocolError, UnsupportedVersion

EMPTY = "Empty"
ONGOING = "Ongoing"
PREPARE_COMMIT = "PrepareCommit"
PREPARE_ABORT = "PrepareAbort"
COMPLETE_COMMIT = "CompleteCommit"
COMPLETE_ABORT = "CompleteAbort"
DEAD = "Dead"
PREPARE_EPOCH_FENCE = "PrepareEpochFence"
# Indexed by the number in the record.
STATES = (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, DEAD,
          PREPARE_EPOCH_FENCE)
PREPARED = frozenset((PREPARE_COMMIT, PREPARE_ABORT))
AT_REST = frozenset((EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT))
NONE = -1
TIMEOUT_NEVER = 2**31 - 1  # For two-phase commit: the external coordinator ends it (KIP-939).
FLEXIBLE_VALUES_SINCE = 1  # The transaction.version whose records use value version 1.
STEM = "records_transaction"
# Shared: most ids have no partitions, and an empty set each would double their memory.
NO_PARTITIONS: frozenset[tuple[str, int]] = frozenset()


class Transaction:
    """A transactional id. version: the transaction.version that its client supports."""

    __slots__ = ("epoch", "id", "last_epoch", "next_producer_id", "partitions",
                 "previous_producer_id", "producer_id", "start_ms", "state", "timeout_ms",
                 "update_ms", "version")

    def __init__(self, id_: str, producer_id: int, timeout_ms: int, now_ms: int):
        self.id = id_
        self.producer_id = producer_id
        self.previous_producer_id = self.next_producer_id = NONE
        self.epoch = self.last_epoch = NONE
        self.timeout_ms = timeout_ms
        self.state = EMPTY
        self.partitions = NO_PARTITIONS
        self.start_ms = NONE
        self.update_ms = now_ms
        self.version = 0

    @property
    def is_exhausted(self) -> bool:
        """Return True if at most one more epoch is left. Fencing always needs one in reserve."""
        return self.epoch >= EPOCH_MAX - 1

    def move(self, state: str, now_ms: int) -> None:
        """Change the state, and save the producer id as the previous one: change it after this."""
        # Only Ongoing and Prepare states have partitions.
        assert not self.partitions or state not in AT_REST, vars_of(self)
        self.previous_producer_id = self.producer_id
        self.state = state
        self.update_ms = now_ms

    def topics(self) -> list[tuple[str, list[int]]]:
        """Return [(topic, [partition])], sorted."""
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            found.setdefault(topic, []).append(partition)
        return list(found.items())


def key_of(id_: str) -> bytes:
    return records.encode_key(messages.TransactionLogKey(transactional_id=id_))


def value_of(transaction: Transaction, feature_level: int) -> bytes:
    """Encode the record's value.

    feature_level: of transaction.version; selects the version of the value.
    """
    new = messages.TransactionLogValue
    assert transaction.state in STATES and transaction.epoch >= 0, vars_of(transaction)
    assert not transaction.partitions or transaction.state not in AT_REST, vars_of(transaction)
    row = new(
        producer_id=transaction.producer_id, producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=STATES.index(transaction.state),
        transaction_partitions=None if transaction.state == EMPTY else [
            new.PartitionsSchema(topic=topic, partition_ids=partitions)
            for topic, partitions in transaction.topics()],
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms)
    if feature_level < FLEXIBLE_VALUES_SINCE:
        return records.encode_value(0, row)
    row.previous_producer_id = transaction.previous_producer_id
    row.next_producer_id = transaction.next_producer_id
    row.client_transaction_version = transaction.version
    return records.encode_value(1, row)


def decode(key: bytes, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """Parse a record into (transactional id, Transaction or None for a tombstone).

    Returns None for other kinds of records. Raises ProtocolError.
    """
    try:
        row = records.decode_key(STEM, key)
    except UnsupportedVersion:
        return None
    if value is None:
        return row.transactional_id, None
    found = records.decode_value(row, value)[1]
    made = Transaction(row.transactional_id, found.producer_id, found.transaction_timeout_ms,
                       found.transaction_last_update_timestamp_ms)
    made.previous_producer_id = found.previous_producer_id
    made.next_producer_id = found.next_producer_id
    made.epoch = found.producer_epoch
    if not 0 <= found.transaction_status < len(STATES):
        raise ProtocolError(f"transaction status {found.transaction_status}")
    made.state = STATES[found.transaction_status]
    made.version = found.client_transaction_version
    made.start_ms = found.transaction_start_timestamp_ms
    if made.state != EMPTY:
        made.partitions = frozenset((topic.topic, partition)
                                    for topic in found.transaction_partitions or ()
                                    for partition in topic.partition_ids)
    return made.id, made


def vars_of(transaction: Transaction) -> dict[str, object]:
    """Return the fields, for assertion messages."""
    return {name: getattr(transaction, name) for name in Transaction.__slots__}
