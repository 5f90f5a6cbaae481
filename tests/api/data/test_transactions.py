"""The transaction handlers in isolation: responses when something happens concurrently, and
notifications.
"""

import asyncio
from types import SimpleNamespace

from pylog.api.data.transactions import TransactionsApi
from pylog.config import internal_topics
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.metadata.image.image import Image, Topic
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

EPOCH, NO_TRANSACTION = 1, -1
TOPIC = Topic("t", b"t" * 16, (SimpleNamespace(leader=0),))


class Groups:
    """A partition of offsets: its log's state of producer 7, and the commits."""

    def __init__(self):
        self.marker = 10
        self.commits = 0
        self.runtime = self

    def partition_of(self, group_id):
        return 3

    def producer_at(self, index, producer_id):
        return (EPOCH, -1, NO_TRANSACTION, self.marker), ErrorCode.NONE

    def run_as_producer(self, index, pending: DeferredResponse, fault, producer_id, step):
        error = fault(self.producer_at(index, producer_id)[0])
        if error == ErrorCode.NONE:
            self.commits += 1
        pending.respond([error])
        return pending


def commit(between, version=5, topic_id=bytes(16)) -> tuple[int, Groups]:
    """Return (the error of one offset, the groups). between: is called during the coordinator's
    lookup.
    """
    groups = Groups()

    async def verified(id_, producer_id, epoch, partitions, kind):
        assert partitions == [(internal_topics.OFFSETS, 3)]
        between(groups)
        return {partitions[0]: ErrorCode.NONE}

    handlers = TransactionsApi(
        None, SimpleNamespace(verified=verified), None, groups,
        SimpleNamespace(image=Image(topics={"t": TOPIC}, topics_by_id={TOPIC.id: TOPIC})),
        lambda: 0)
    new = messages.TxnOffsetCommitRequest
    request = new(transactional_id="tx", group_id="g", producer_id=7, producer_epoch=EPOCH, topics=[
        new.TxnOffsetCommitRequestTopic(
            name="t" if version < 6 else "", topic_id=topic_id, partitions=[
            new.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)])])
    answer = asyncio.run(handlers.txn_offset_commit(SimpleNamespace(api_version=version), request))
    return answer.topics[0].partitions[0].error_code, groups


def test_offsets_are_committed_once_the_coordinator_has_their_partition():
    error, groups = commit(lambda groups: None)
    assert (error, groups.commits) == (ErrorCode.NONE, 1)


def test_offsets_are_committed_by_the_topics_id_from_version_6():
    error, groups = commit(lambda groups: None, 6, TOPIC.id)
    assert (error, groups.commits) == (ErrorCode.NONE, 1)
    error, groups = commit(lambda groups: None, 6, b"u" * 16)
    assert (error, groups.commits) == (ErrorCode.UNKNOWN_TOPIC_ID, 0)


def test_marker_during_offset_verification_causes_another_verification():
    error, groups = commit(lambda groups: setattr(groups, "marker", 11))
    assert (error, groups.commits) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)


class Coordinator:
    """added: partitions added to transactions. waiting: the newest pending responses."""

    def __init__(self):
        self.added, self.waiting = [], None

    def add(self, id_, producer_id, epoch, partitions, version):
        self.added.append((id_, producer_id, epoch, partitions, version))
        self.waiting = DeferredResponse(lambda error: error)
        return self.waiting


def add(version, error=ErrorCode.NONE):
    """Return (the error of one partition, the coordinator's calls, the verification's calls)."""
    coordinator, informed, rights = Coordinator(), [], ["before"]
    handlers = TransactionsApi(
        coordinator, SimpleNamespace(
            added=lambda *said: informed.append(said),
            holder=lambda principal: (principal, rights[-1])), None, None,
        SimpleNamespace(image=Image(topics={"t": TOPIC})), lambda: 0)
    new = messages.AddPartitionsToTxnRequest
    topics = [new.AddPartitionsToTxnTopic(name="t", partitions=[0])]
    request = new(transactions=[new.AddPartitionsToTxnTransaction(
        transactional_id="tx", producer_id=7, producer_epoch=EPOCH, topics=topics)]) \
        if version >= 4 else new(
            v3_and_below_transactional_id="tx", v3_and_below_producer_id=7,
            v3_and_below_producer_epoch=EPOCH, v3_and_below_topics=topics)

    async def work():
        answer = handlers.add_partitions_to_txn(
            SimpleNamespace(api_version=version, principal=9), request)
        under_way = asyncio.ensure_future(_awaited(answer))
        await asyncio.sleep(0)
        assert not informed and not under_way.done()
        rights.append("after")
        coordinator.waiting.respond(error)
        return await under_way

    answer = asyncio.run(work())
    rows = answer.results_by_topic_v3_and_below if version < 4 \
        else answer.results_by_transaction[0].topic_results
    return rows[0].results_by_partition[0].partition_error_code, coordinator.added, informed


async def _awaited(answer):
    return await answer


def test_partitions_added_by_a_producer_need_no_verification():
    """Uses the permissions that were checked: if they change during the call, they are checked
    again.
    """
    assert add(3) == (ErrorCode.NONE, [("tx", 7, EPOCH, [("t", 0)], 0)],
                      [("tx", 7, EPOCH, [("t", 0)], (9, "before"))])


def test_partitions_added_by_a_broker_do_not_skip_verification():
    assert add(4) == (ErrorCode.NONE, [("tx", 7, EPOCH, [("t", 0)], 2)], [])


def test_rejected_partitions_are_still_verified():
    assert add(3, ErrorCode.CONCURRENT_TRANSACTIONS)[0::2] == (
        ErrorCode.CONCURRENT_TRANSACTIONS, [])
