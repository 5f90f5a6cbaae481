"""Transactions as a pure state machine: takes requests and a clock, produces records and responses.

Owns: the transactional ids of one partition of `__transaction_state`, and their timers.
Invariants: an epoch is given to one producer only, later producers get a higher one; a prepared
  transaction ends with the prepared result; markers are requested after the prepare record is
  durable, because Ending is sent as a response; ending a transaction without its client (timeout,
  newer producer) fences that client; where the epoch does not distinguish transactions, a repeated
  request is written again before it succeeds, because a coordinator that was replaced without
  noticing would otherwise confirm it for an older transaction.
Source: KIP-98, KIP-360 (bumped epochs), KIP-890 (epoch bump per transaction), KIP-939 (two-phase
  commit, as far as Kafka 4.4 supports it), KIP-664, KIP-1152 (filters of a list).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pylog.coordinator.runtime.journal import Written
from pylog.coordinator.runtime.timers import Time, Timers
from pylog.coordinator.runtime.transactional_batches import EPOCH_BUMP_SINCE, EPOCH_MAX
from pylog.coordinator.transactions import transaction_metadata
from pylog.coordinator.transactions.transaction_metadata import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    NONE,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TIMEOUT_NEVER,
    Transaction,
    key_of,
    value_of,
)
from pylog.protocol import messages
from pylog.protocol.errors import Error, ErrorCode

EXPIRY_STEP = 1000  # Transactional ids checked per expiry step.
OVERDUE_AGAIN_MS = 1000
Partition = tuple[str, int]


class Limits(NamedTuple):
    """The broker settings for transactions."""

    timeout_ms_max: int
    expiration_ms: int
    has_two_phases: bool


class NeedProducerId:
    """Returned by a step that must be repeated with a new producer id."""


class Ending(NamedTuple):
    """The markers that a prepared transaction needs. Call complete() when they are written."""

    transactional_id: str
    producer_id: int
    epoch: int
    committed: bool
    partitions: tuple[Partition, ...]
    version: int  # Transaction version: how strictly partitions check the epoch.


class Overdue(NamedTuple):
    """A timed-out transaction that can only be fenced with a new producer id."""

    transactional_id: str
    start_ms: int  # Identifies the transaction of this transactional id.


def init_fault(request: Any, limits: Limits) -> Error:
    """Return the error if an InitProducerId request is invalid for any producer, or NONE."""
    if request.enable2_pc and not limits.has_two_phases:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if request.keep_prepared_txn:
        return ErrorCode.UNSUPPORTED_VERSION  # As Kafka 4.4, which does not support it yet.
    if not request.enable2_pc and not 0 < request.transaction_timeout_ms <= limits.timeout_ms_max:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


class Transactions:
    """The transactional ids of one partition. See shard.StateMachine for the attributes.

    clock: see timers.Time. outbox: the token that receives Ending and Overdue. feature_level:
    returns the level of transaction.version.
    """

    def __init__(self, limits: Limits, clock: Time, outbox: Any, feature_level: Callable[[], int]):
        self.limits = limits
        self.clock = clock
        self.transactions: dict[str, Transaction] = {}
        self.timers = Timers()
        self.records: list[Written] = []
        self.responses: list[tuple[Any, Any]] = []
        self.cleanups = 0
        self.changed: set[str] = set()
        self._outbox = outbox
        self._feature_level = feature_level

    # ---- called by the runtime ------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order, before loaded(). Raises ProtocolError."""
        decoded = transaction_metadata.decode(key, value)
        if decoded is None:
            return
        id_, found = decoded
        if found is None:
            self.transactions.pop(id_, None)
        else:
            self.transactions[id_] = found

    def loaded(self) -> None:
        """Resume after the last record: complete prepared transactions and start timeouts."""
        for found in self.transactions.values():
            if found.state in PREPARED:
                self._request_markers(found)
            elif found.state == ONGOING:
                self._expect_end(found)

    def open_tokens(self) -> Iterable[Any]:
        """Return nothing: every request is answered in its step."""
        return ()

    def saved(self, changed: set[str]) -> None:
        """Do nothing: there is no snapshot."""

    def tick(self) -> None:
        """Abort transactions that have timed out, which fences their clients."""
        while (due := self.timers.take_due(self.clock.now_ms())) is not None:
            found = self.transactions[due[0]]
            assert found.state == ONGOING, transaction_metadata.vars_of(found)
            if self._fence(found, NONE) is NeedProducerId:
                self.responses.append((self._outbox, Overdue(found.id, found.start_ms)))
                self.timers.set((found.id,), self.clock.now_ms() + OVERDUE_AGAIN_MS)

    # ---- InitProducerId -------------------------------------------------------------------------

    def init(self, request: Any, new_id: int = NONE) -> Any:
        """Handle InitProducerId with a transactional id.

        new_id: an unused producer id; without one, the result may be NeedProducerId.
        """
        error = init_fault(request, self.limits)
        if error != ErrorCode.NONE:
            return _not_initialized(error)
        timeout_ms = TIMEOUT_NEVER if request.enable2_pc else request.transaction_timeout_ms
        found = self.transactions.get(request.transactional_id)
        if found is None:
            if new_id == NONE:
                return NeedProducerId
            found = Transaction(request.transactional_id, new_id, timeout_ms, self.clock.wall_ms())
        expected = None if request.producer_id == NONE else (
            request.producer_id, request.producer_epoch)
        if expected is not None and not _may_go_on(found, *expected):
            return _not_initialized(ErrorCode.PRODUCER_FENCED)
        if found.state in PREPARED:
            return _not_initialized(ErrorCode.CONCURRENT_TRANSACTIONS)
        if found.state == ONGOING:
            # The client retries once the abort has completed.
            fenced = self._fence(found, new_id)
            return fenced or _not_initialized(ErrorCode.CONCURRENT_TRANSACTIONS)
        return self._initialized(found, expected, timeout_ms, new_id)

    def _initialized(self, found: Transaction, expected: tuple[int, int] | None, timeout_ms: int,
                     new_id: int) -> Any:
        producer_id, epoch, last_epoch = found.producer_id, found.epoch + 1, NONE
        if found.is_exhausted and (expected is None or expected[1] == found.epoch):
            if new_id == NONE:
                return NeedProducerId
            producer_id, epoch = new_id, 0
        if expected is not None:
            if found.epoch in (NONE, expected[1]):
                last_epoch = found.epoch
            elif expected[1] == found.last_epoch:
                # The client retries because it did not receive the previous response.
                epoch, last_epoch = found.epoch, found.last_epoch
            else:
                return _not_initialized(ErrorCode.PRODUCER_FENCED)
        self.transactions[found.id] = found
        found.partitions = transaction_metadata.NO_PARTITIONS
        found.move(EMPTY, self.clock.wall_ms())
        found.start_ms = NONE
        found.timeout_ms = timeout_ms
        found.producer_id, found.epoch, found.last_epoch = producer_id, epoch, last_epoch
        self._record(found)
        return messages.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)

    # ---- partitions -----------------------------------------------------------------------------

    def add(self, id_: str, producer_id: int, epoch: int, partitions: Iterable[Partition],
            version: int) -> Error:
        """Add partitions to the transaction, and begin it if needed."""
        found, error = self._of_producer(id_, producer_id, epoch)
        if found is None:
            return error
        begins = found.state != ONGOING
        found.move(ONGOING, self.clock.wall_ms())
        found.partitions = found.partitions.union(partitions)
        found.version = version
        if begins:
            found.start_ms = found.update_ms
            self._expect_end(found)
        self._record(found)  # Even if unchanged: fences a replaced coordinator.
        return ErrorCode.NONE

    def verify(self, id_: str, producer_id: int, epoch: int,
               partitions: Iterable[Partition]) -> dict[Partition, Error]:
        """Return {partition: NONE if it is part of the transaction}. Changes nothing."""
        found, error = self._of_producer(id_, producer_id, epoch)
        if found is None:
            return dict.fromkeys(partitions, error)
        return {partition: ErrorCode.NONE if partition in found.partitions
                else ErrorCode.TRANSACTION_ABORTABLE for partition in partitions}

    def _of_producer(self, id_: str, producer_id: int,
                     epoch: int) -> tuple[Transaction | None, Error]:
        """Return the transaction that the producer may write to, or (None, error)."""
        found = self.transactions.get(id_)
        if not id_:
            return None, ErrorCode.INVALID_REQUEST
        if found is None or found.producer_id != producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if found.epoch != epoch:
            return None, ErrorCode.PRODUCER_FENCED
        if found.state in PREPARED:
            return None, ErrorCode.CONCURRENT_TRANSACTIONS
        return found, ErrorCode.NONE

    # ---- the end --------------------------------------------------------------------------------

    def end(self, id_: str, producer_id: int, epoch: int, committed: bool, version: int,
            new_id: int = NONE) -> Any:
        """Handle EndTxn. version: the client's transaction version; new_id: see init()."""
        found = self.transactions.get(id_)
        if not id_:
            return _not_ended(ErrorCode.INVALID_REQUEST)
        if found is None:
            return _not_ended(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if version < EPOCH_BUMP_SINCE:
            return self._end_plainly(found, producer_id, epoch, committed)
        return self._end_and_bump(found, producer_id, epoch, committed, version, new_id)

    def _end_plainly(self, found: Transaction, producer_id: int, epoch: int,
                     committed: bool) -> Any:
        """End a transaction of a client that does not support transaction version 2."""
        if found.producer_id != producer_id:
            return _not_ended(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if found.epoch != epoch:
            return _not_ended(ErrorCode.PRODUCER_FENCED)
        if found.state == ONGOING:
            self._prepare(found, committed, 0)
            return messages.EndTxnResponse()
        error = _repeated(found, committed)
        if error == ErrorCode.NONE:
            self._record(found)  # A replaced coordinator must not succeed.
        return _not_ended(error)

    def _end_and_bump(self, found: Transaction, producer_id: int, epoch: int, committed: bool,
                      version: int, new_id: int) -> Any:
        """End the transaction and bump the producer's epoch (KIP-890)."""
        overflowed = found.previous_producer_id == producer_id and epoch == EPOCH_MAX - 1 \
            and found.epoch == 0
        repeated = overflowed or found.epoch == epoch + 1
        if found.producer_id != producer_id and not overflowed:
            return _not_ended(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if found.state in PREPARED:
            valid = found.epoch == epoch + 1
        elif found.state in (COMPLETE_COMMIT, COMPLETE_ABORT):
            valid = repeated or epoch == found.epoch
        else:
            valid = epoch == found.epoch
        if not valid:
            return _not_ended(ErrorCode.PRODUCER_FENCED)
        if found.state in PREPARED or repeated:
            error = _repeated(found, committed)
            if repeated and committed and found.state == COMPLETE_ABORT:
                # The transaction timed out while this commit was on its way. Clients recover from
                # PRODUCER_FENCED, but not from INVALID_TXN_STATE (KAFKA-20785).
                error = ErrorCode.PRODUCER_FENCED
            if error != ErrorCode.NONE:
                return _not_ended(error)
            return messages.EndTxnResponse(producer_id=found.producer_id,
                                           producer_epoch=found.epoch)
        if found.state != ONGOING and committed:
            return _not_ended(ErrorCode.INVALID_TXN_STATE)
        return self._bump(found, committed, version, new_id)

    def _bump(self, found: Transaction, committed: bool, version: int, new_id: int) -> Any:
        if found.is_exhausted and new_id == NONE:
            return NeedProducerId
        found.next_producer_id = new_id if found.is_exhausted else NONE
        self._prepare(found, committed, version)
        if found.next_producer_id != NONE:
            return messages.EndTxnResponse(producer_id=found.next_producer_id, producer_epoch=0)
        return messages.EndTxnResponse(producer_id=found.producer_id, producer_epoch=found.epoch)

    def _prepare(self, found: Transaction, committed: bool, version: int) -> None:
        """Decide the result. The decision is final once its record is durable."""
        at_rest = found.state in AT_REST
        found.move(PREPARE_COMMIT if committed else PREPARE_ABORT, self.clock.wall_ms())
        if at_rest:
            found.start_ms = found.update_ms
        if version >= EPOCH_BUMP_SINCE:
            found.last_epoch = found.epoch
            found.epoch = min(found.epoch + 1, EPOCH_MAX)
        found.version = version
        self.timers.cancel((found.id,))
        self._record(found)
        self._request_markers(found)

    def _fence(self, found: Transaction, new_id: int) -> Any:
        """Abort an open transaction and fence its client. Return NeedProducerId or None."""
        version = self._feature_level()
        if version >= EPOCH_BUMP_SINCE:
            bumped = self._bump(found, False, version, new_id)
            return NeedProducerId if bumped is NeedProducerId else None
        found.epoch = min(found.epoch + 1, EPOCH_MAX)
        found.last_epoch = NONE
        self._prepare(found, False, 0)
        return None

    def abort_overdue(self, overdue: Overdue, new_id: int) -> None:
        """Abort a timed-out transaction with a new producer id; see tick()."""
        found = self.transactions.get(overdue.transactional_id)
        if found is not None and found.state == ONGOING and found.start_ms == overdue.start_ms:
            self._fence(found, new_id)

    def complete(self, ended: Ending) -> None:
        """Complete a prepared transaction: every partition has its marker."""
        found = self.transactions.get(ended.transactional_id)
        if found is None or found.state not in PREPARED or \
                (found.producer_id, found.epoch) != (ended.producer_id, ended.epoch):
            return
        # The result must be the prepared one.
        assert (found.state == PREPARE_COMMIT) == ended.committed, \
            transaction_metadata.vars_of(found)
        found.partitions = transaction_metadata.NO_PARTITIONS
        found.move(COMPLETE_COMMIT if ended.committed else COMPLETE_ABORT, self.clock.wall_ms())
        if found.version >= EPOCH_BUMP_SINCE and found.next_producer_id != NONE:
            found.producer_id, found.epoch = found.next_producer_id, 0
        found.next_producer_id = NONE
        self._record(found)

    def _request_markers(self, found: Transaction) -> None:
        # A response, so that it is sent after the prepare record is durable.
        self.responses.append((self._outbox, Ending(
            found.id, found.producer_id, found.epoch, found.state == PREPARE_COMMIT,
            tuple(sorted(found.partitions)), found.version)))

    # ---- time -----------------------------------------------------------------------------------

    def _expect_end(self, found: Transaction) -> None:
        if found.timeout_ms != TIMEOUT_NEVER:
            left_ms = found.start_ms + found.timeout_ms - self.clock.wall_ms()
            self.timers.set((found.id,), self.clock.now_ms() + max(0, left_ms))

    def expire(self) -> Iterator[None]:
        """Remove transactional ids unused for expiration_ms, EXPIRY_STEP ids per step."""
        every = list(self.transactions)
        for first in range(0, len(every), EXPIRY_STEP):
            until_ms = self.clock.wall_ms() - self.limits.expiration_ms
            for id_ in every[first:first + EXPIRY_STEP]:
                found = self.transactions.get(id_)
                if found is not None and found.state in AT_REST and found.update_ms <= until_ms:
                    del self.transactions[id_]
                    self.records.append((key_of(id_), None))
            yield

    def _record(self, found: Transaction) -> None:
        self.records.append((key_of(found.id), value_of(found, self._feature_level())))


def _may_go_on(found: Transaction, producer_id: int, epoch: int) -> bool:
    """Return True if this producer id and epoch may continue the transactional id."""
    return found.epoch == NONE or producer_id == found.producer_id or (
        producer_id == found.previous_producer_id and epoch >= EPOCH_MAX - 1)


def _repeated(found: Transaction, committed: bool) -> Error:
    """Return the result of an EndTxn when no transaction is ongoing."""
    if found.state == (COMPLETE_COMMIT if committed else COMPLETE_ABORT):
        return ErrorCode.NONE
    if found.state == (PREPARE_COMMIT if committed else PREPARE_ABORT):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.INVALID_TXN_STATE


def _not_initialized(error: int) -> Any:
    return messages.InitProducerIdResponse(
        error_code=error, producer_id=NONE, producer_epoch=NONE)


def _not_ended(error: int) -> Any:
    return messages.EndTxnResponse(error_code=error, producer_id=NONE, producer_epoch=NONE)
