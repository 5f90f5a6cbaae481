"""Transactions on the wire: InitProducerId (22) with a transactional id, AddPartitionsToTxn (24),
AddOffsetsToTxn (25), EndTxn (26), WriteTxnMarkers (27), TxnOffsetCommit (28), DescribeTransactions
(65), ListTransactions (66).

Owns: nothing.
Invariants: a response is sent after its changes are durable; either all partitions of a request are
  added to a transaction, or none; clients without PRODUCER_FENCED get INVALID_PRODUCER_EPOCH.
Source: KIP-98, KIP-447, KIP-588 (PRODUCER_FENCED), KIP-664, KIP-890, KIP-994 (duration filter),
  KIP-1152 (pattern filter), KIP-1319 (topic ids).
"""

from __future__ import annotations

import re

from pylog.config import internal_topics
from pylog.coordinator.groups import offsets
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.transactional_batches import Marker
from pylog.coordinator.transactions.shard import Transactions
from pylog.coordinator.transactions.transaction_metadata import DEAD, STATES
from pylog.coordinator.transactions.verification import OFFSETS_KINDS, kind_of
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.coordinator.runtime.local_append import Markers
    from pylog.coordinator.transactions.service import TransactionCoordinator
    from pylog.coordinator.transactions.verification import Verification
    from pylog.metadata.service import MetadataService
    from pylog.protocol.errors import Error

BATCHED_SINCE = 4       # AddPartitionsToTxn of brokers, for several transactions
FENCED_SINCE = 2        # PRODUCER_FENCED in 24, 25 and 26,
INIT_FENCED_SINCE = 4   # and in InitProducerId
END_BUMP_SINCE = 5      # EndTxn of clients with transactions of version 2
LOADING_SINCE = 2       # COORDINATOR_LOAD_IN_PROGRESS in TxnOffsetCommit,
IDS_SINCE = 6           # and ids of topics (KIP-1319)
PART_ROWS = 500


class TransactionsApi:
    """Transactions, on the coordinator `transactions`; groups: for their offsets. now_ms: the wall
    clock.
    """

    def __init__(self, transactions: TransactionCoordinator, verification: Verification,
                 markers: Markers, groups: GroupCoordinator, metadata: MetadataService,
                 now_ms: Callable[[], int]):
        self._transactions = transactions
        self._verification = verification
        self._markers = markers
        self._groups = groups
        self._metadata = metadata
        self._now_ms = now_ms

    def handlers(self) -> dict[int, Handler]:
        return {
            api.ADD_PARTITIONS_TO_TXN: self.add_partitions_to_txn,
            api.ADD_OFFSETS_TO_TXN: self.add_offsets_to_txn,
            api.END_TXN: self.end_txn,
            api.WRITE_TXN_MARKERS: self.write_txn_markers,
            api.TXN_OFFSET_COMMIT: self.txn_offset_commit,
            api.DESCRIBE_TRANSACTIONS: self.describe_transactions,
            api.LIST_TRANSACTIONS: self.list_transactions,
        }

    def init_producer_id(self, context: RequestContext,
                         request: Message) -> Message | DeferredResponse:
        """Return the producer id and epoch of a transactional id; earlier producers are fenced.

        Errors: INVALID_REQUEST for an empty id; INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS;
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED for two-phase commit unless it is enabled;
        UNSUPPORTED_VERSION for keeping a prepared transaction, as in Kafka 4.4.
        """
        def answer(error: int) -> Message:
            return messages.InitProducerIdResponse(
                error_code=error, producer_id=-1, producer_epoch=-1)

        def shape(message: Message) -> Message:
            message.error_code = _fenced(message.error_code, context, INIT_FENCED_SINCE)
            return message

        id_ = request.transactional_id
        if not id_:
            return answer(ErrorCode.INVALID_REQUEST)
        fault = self._transactions.init_fault(request)
        if fault != ErrorCode.NONE:
            return answer(fault)
        return self._transactions.run(id_, DeferredResponse(answer, shape), Transactions.init,
                                      request)

    # ---- partitions -----------------------------------------------------------------------------

    def add_partitions_to_txn(
            self, context: RequestContext,
            request: Message) -> DeferredResponse | Coroutine[Any, Any, Message]:
        """Add partitions to a transaction or, for brokers, verify that they are in it (KIP-890).

        Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, with OPERATION_NOT_ATTEMPTED for the
        others; INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
        INVALID_REQUEST, TRANSACTION_ABORTABLE (not in the transaction), NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        if context.api_version >= BATCHED_SINCE:
            return self._added_for_brokers(context, request)
        response = DeferredResponse(
            lambda error: error, lambda rows: messages.AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=rows))
        self._added(
            context, request.v3_and_below_transactional_id, request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch, request.v3_and_below_topics,
            False).then(response.respond)
        return response

    async def _added_for_brokers(self, context: RequestContext, request: Message) -> Message:
        """Handle several transactions, one after the other."""
        response = messages.AddPartitionsToTxnResponse
        requested = {row.transactional_id: row for row in request.transactions}
        return response(results_by_transaction=[
            response.AddPartitionsToTxnResult(
                transactional_id=row.transactional_id,
                topic_results=await self._added(
                    context, row.transactional_id, row.producer_id, row.producer_epoch, row.topics,
                    row.verify_only)) for row in requested.values()])

    def _added(self, context, id_: str, producer_id: int, epoch: int, topics,
               verify_only: bool) -> DeferredResponse:
        """Respond with the rows of one transaction. Adds all partitions or none."""
        image = self._metadata.image
        partitions = list(dict.fromkeys(
            (topic.name, index) for topic in topics for index in topic.partitions))
        rows = DeferredResponse(lambda error: dict.fromkeys(partitions, error), _by_topic)
        missing = {at for at in partitions if image.partition(*at) is None}
        if missing:
            rows.respond({at: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if at in missing
                         else ErrorCode.OPERATION_NOT_ATTEMPTED for at in partitions})
        elif not id_:
            rows.refuse(ErrorCode.INVALID_REQUEST)
        elif verify_only:
            found, error = self._transactions.query(
                id_, Transactions.verify, id_, producer_id, epoch, partitions)
            rows.respond(dict.fromkeys(partitions, error) if found is None else found)
        else:
            is_clients = context.api_version < BATCHED_SINCE
            holder = self._verification.holder(context.principal)

            def added(error: Error) -> None:
                if error == ErrorCode.NONE and is_clients:
                    self._verification.added(id_, producer_id, epoch, partitions, holder)
                rows.respond(dict.fromkeys(partitions, _fenced(error, context, FENCED_SINCE)))

            self._transactions.add(
                id_, producer_id, epoch, partitions, 0 if is_clients else 2).then(added)
        return rows

    async def add_offsets_to_txn(self, context: RequestContext, request: Message) -> Message:
        """Add the partition with a group's offsets to the transaction. Errors as for
        add_partitions_to_txn().
        """
        new = messages.AddOffsetsToTxnResponse
        if not request.transactional_id:
            return new(error_code=ErrorCode.INVALID_REQUEST)
        error = await self._groups.ensure_topic()
        if error == ErrorCode.NONE:
            error = await self._transactions.add(
                request.transactional_id, request.producer_id, request.producer_epoch,
                [(internal_topics.OFFSETS, self._groups.partition_of(request.group_id))], 0)
        return new(error_code=_fenced(error, context, FENCED_SINCE))

    # ---- end ------------------------------------------------------------------------------------

    def end_txn(self, context: RequestContext, request: Message) -> Message | DeferredResponse:
        """Commit or abort: the response is the decision, markers follow. From version 5 on it
        contains the producer's next epoch (KIP-890).

        Errors: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS (already ending), INVALID_TXN_STATE, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        def answer(error: int) -> Message:
            return messages.EndTxnResponse(error_code=error, producer_id=-1, producer_epoch=-1)

        def shape(message: Message) -> Message:
            message.error_code = _fenced(message.error_code, context, FENCED_SINCE)
            return message

        id_ = request.transactional_id
        if not id_:
            return answer(ErrorCode.INVALID_REQUEST)
        return self._transactions.run(
            id_, DeferredResponse(answer, shape), Transactions.end, id_, request.producer_id,
            request.producer_epoch, request.committed,
            2 if context.api_version >= END_BUMP_SINCE else 0)

    async def write_txn_markers(self, context: RequestContext, request: Message) -> Message:
        """End transactions in partitions that this broker leads; respond when they are durable.

        Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
        """
        response = messages.WriteTxnMarkersResponse
        rows: dict[int, dict] = {}
        for requested in request.markers:
            marker = Marker(requested.producer_id, requested.producer_epoch,
                            requested.coordinator_epoch,
                            requested.transaction_result, requested.transaction_version)
            found = await self._markers.write(marker, dict.fromkeys(
                (topic.name, index) for topic in requested.topics
                for index in topic.partition_indexes))
            rows.setdefault(marker.producer_id, {}).update(found)
        return response(markers=[
            response.WritableTxnMarkerResult(producer_id=producer_id, topics=[
                response.WritableTxnMarkerTopicResult(name=name, partitions=[
                    response.WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=error) for index, error in cells])
                for name, cells in _grouped(found)])
            for producer_id, found in rows.items()])

    # ---- offsets --------------------------------------------------------------------------------

    async def txn_offset_commit(self, context: RequestContext, request: Message) -> Message:
        """Commit offsets that take effect when the transaction commits; an error code per
        partition.

        Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID (version 6, by id),
        OFFSET_METADATA_TOO_LARGE; for all of them INVALID_GROUP_ID, INVALID_TXN_STATE (from
        version 4 on TRANSACTION_ABORTABLE), INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING,
        CONCURRENT_TRANSACTIONS, ILLEGAL_GENERATION (from version 6 on GROUP_ID_NOT_FOUND and
        STALE_MEMBER_EPOCH), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        new = messages.TxnOffsetCommitResponse
        image = self._metadata.image
        by_id = context.api_version >= IDS_SINCE
        topics, positions, entries = [], [], []
        for requested in request.topics:
            topic = image.topics_by_id.get(bytes(requested.topic_id)) if by_id \
                else image.topics.get(requested.name)
            missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id and topic is None \
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            rows = []
            for cell in requested.partitions:
                row = new.TxnOffsetCommitResponsePartition(partition_index=cell.partition_index)
                rows.append(row)
                if topic is None or not 0 <= cell.partition_index < len(topic.partitions):
                    row.error_code = missing
                    continue
                positions.append(row)
                entries.append((topic.name, topic.id, cell.partition_index, cell.committed_offset,
                                cell.committed_leader_epoch, cell.committed_metadata))
            topics.append(new.TxnOffsetCommitResponseTopic(
                name=requested.name, topic_id=requested.topic_id, partitions=rows))
        if entries:
            errors = await self._offsets_committed(context, request, entries)
            for row, error in zip(positions, errors, strict=True):
                old = context.api_version < LOADING_SINCE
                row.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE \
                    if old and error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        return new(topics=topics)

    async def _offsets_committed(self, context, request, entries: list) -> list:
        """Return the error of each entry."""
        if not request.group_id:
            return [ErrorCode.INVALID_GROUP_ID] * len(entries)
        index = self._groups.partition_of(request.group_id)
        if index < 0:
            return [ErrorCode.NOT_COORDINATOR] * len(entries)
        marker, error = await self._verified(context, request, index)
        if error != ErrorCode.NONE:
            return [error] * len(entries)

        def commit(store):
            result = offsets.commit_in_transaction(store, request, entries, context.api_version)
            return result if isinstance(result, list) else [result] * len(entries)

        def fault(known: tuple) -> Error:
            if request.producer_epoch < known[0]:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            is_open = known[2] >= 0 and known[0] == request.producer_epoch
            # A marker arrived in the meantime, for example from a new coordinator that writes it
            # again: a retry of the client is verified again.
            return ErrorCode.NONE if is_open or known[3] == marker \
                else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

        return await self._groups.runtime.run_as_producer(
            index, DeferredResponse(lambda error: [error] * len(entries)), fault,
            request.producer_id, commit)

    async def _verified(self, context, request, index: int) -> tuple:
        """Return (offset of the producer's newest marker, the error if it may not write): see
        log.h.
        """
        known, error = self._groups.producer_at(index, request.producer_id)
        if error != ErrorCode.NONE:
            return -1, error
        if known[2] >= 0 and known[0] == request.producer_epoch:
            return known[3], ErrorCode.NONE
        if not request.transactional_id:
            return -1, ErrorCode.INVALID_REQUEST
        at = internal_topics.OFFSETS, index
        found = await self._verification.verified(
            request.transactional_id, request.producer_id, request.producer_epoch, [at],
            kind_of(context.api_version, OFFSETS_KINDS))
        error = found[at]
        if error == ErrorCode.NETWORK_EXCEPTION:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return known[3], error

    # ---- describe and list ----------------------------------------------------------------------

    def describe_transactions(
            self, context: RequestContext, request: Message) -> Iterator[Message | None]:
        """Yield state, producer and partitions of transactional ids, in parts (KIP-664).

        Errors per id: TRANSACTIONAL_ID_NOT_FOUND, INVALID_REQUEST (empty), NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        new = messages.DescribeTransactionsResponse
        rows = []
        for id_ in request.transactional_ids:
            rows.append(self._described(id_))
            if len(rows) == PART_ROWS:
                yield new(transaction_states=rows)
                rows = []
        yield new(transaction_states=rows)

    def _described(self, id_: str) -> Message:
        row = messages.DescribeTransactionsResponse.TransactionState(transactional_id=id_)
        if not id_:
            row.error_code = ErrorCode.INVALID_REQUEST
            return row
        found, error = self._transactions.query(id_, _find, id_)
        if found is None:
            row.error_code = error or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return row
        row.transaction_state = found.state
        row.transaction_timeout_ms = found.timeout_ms
        row.transaction_start_time_ms = found.start_ms
        row.producer_id, row.producer_epoch = found.producer_id, found.epoch
        row.topics = [messages.DescribeTransactionsResponse.TopicData(
            topic=topic, partitions=partitions) for topic, partitions in found.topics()]
        return row

    def list_transactions(
            self, context: RequestContext, request: Message) -> Iterator[Message | None]:
        """Yield the transactional ids coordinated here that match all filters, in parts.

        Errors: COORDINATOR_LOAD_IN_PROGRESS while any partition loads; INVALID_REGULAR_EXPRESSION.
        """
        new = messages.ListTransactionsResponse
        ready, loading = self._transactions.shards()
        if loading:
            yield new(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return
        # Imported here because it is rarely used.
        from pylog.api.groups.patterns import Pattern

        try:
            pattern = Pattern(request.transactional_id_pattern or "")
        except re.error:
            yield new(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
            return
        yield new(unknown_state_filters=[
            name for name in request.state_filters if name not in STATES])
        request.producer_id_filters = frozenset(request.producer_id_filters)
        request.state_filters = frozenset(request.state_filters)
        rows, by_pattern = [], bool(request.transactional_id_pattern)
        for shard in ready:
            for number, found in enumerate(list(shard.state_machine.transactions.values())):
                if number % PART_ROWS == PART_ROWS - 1:
                    yield None
                if not self._passes(request, found) or by_pattern and not pattern.matches(found.id):
                    continue
                rows.append(new.TransactionState(
                    transactional_id=found.id, producer_id=found.producer_id,
                    transaction_state=found.state))
                if len(rows) == PART_ROWS:
                    yield new(transaction_states=rows)
                    rows = []
        yield new(transaction_states=rows)

    def _passes(self, request: Message, found) -> bool:
        if found.state == DEAD:
            return False
        if request.producer_id_filters and found.producer_id not in request.producer_id_filters:
            return False
        if request.state_filters and found.state not in request.state_filters:
            return False
        return request.duration_filter < 0 or \
            self._now_ms() - found.start_ms > request.duration_filter


def _find(transactions: Transactions, id_: str):
    return transactions.transactions.get(id_)


def _fenced(error: int, context: RequestContext, since: int) -> int:
    """Replace PRODUCER_FENCED for clients that do not support it."""
    if error == ErrorCode.PRODUCER_FENCED and context.api_version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _grouped(found: dict) -> list:
    """Return [(topic, [(partition, error)])], in order of appearance."""
    topics: dict[str, list] = {}
    for (topic, index), error in found.items():
        topics.setdefault(topic, []).append((index, error))
    return list(topics.items())


def _by_topic(found: dict) -> list:
    """Return the rows of AddPartitionsToTxn."""
    new = messages.AddPartitionsToTxnResponse
    return [new.AddPartitionsToTxnTopicResult(name=name, results_by_partition=[
        new.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
        for index, error in cells]) for name, cells in _grouped(found)]
