"""Look up offsets by time, log ends, and a consumer's start positions.

Owns: nothing.
Invariants: one request per leader covers all its partitions; a retry includes only partitions that
  failed.
Source: Kafka's ListOffsets and OffsetForLeaderEpoch; KIP-79, KIP-320 (truncation).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from pylog.client.config import durations
from pylog.client.consumer.subscription_state import PartitionState
from pylog.client.errors import (
    KafkaError, LogTruncationError, NoOffsetForPartitionError, error,
)
from pylog.client.network.cluster import Cluster
from pylog.client.types import EARLIEST, LATEST, OffsetAndTimestamp, TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

TIMES: dict[Any, Any] = {"earliest": EARLIEST, "latest": LATEST}
_ISOLATION_VERSION = 2


async def by_leader(cluster: Cluster, wanted: Mapping[TopicPartition, Any],
                    query: Callable[[int, dict[TopicPartition, Any]], Any],
                    timeout_s: float | None = None,
                    found: Callable[[TopicPartition, Any], None] | None = None,
                    ) -> dict[TopicPartition, Any]:
    """Call `query(leader, its part of wanted)` until every partition has a result.

    `query` returns {partition: result or KafkaError}; retriable errors are retried. `found` is
    called with each result immediately, without waiting for partitions without a leader. Raises
    KafkaError, with `results` of all partitions.
    """
    done: dict[TopicPartition, Any] = {}
    failed: dict[TopicPartition, BaseException] = {}

    async def attempt() -> None:
        failed.clear()
        shares: dict[int, dict[TopicPartition, Any]] = defaultdict(dict)
        left = [tp for tp in wanted if tp not in done]
        # Concurrently, so that all unknown leaders are requested at once.
        infos = await asyncio.gather(*[cluster.leader(*tp) for tp in left], return_exceptions=True)
        for tp, info in zip(left, infos):
            if isinstance(info, BaseException):
                failed[tp] = info
            else:
                shares[info.leader][tp] = wanted[tp]
        responses = await asyncio.gather(*[query(node, share) for node, share in shares.items()],
                                         return_exceptions=True)
        for share, response in zip(shares.values(), responses):
            if isinstance(response, BaseException):
                failed.update(dict.fromkeys(share, response))
                continue
            for tp, result in response.items():
                if isinstance(result, BaseException):
                    failed[tp] = result
                    continue
                done[tp] = result
                if found is not None:
                    found(tp, result)
        if failed:  # A retry covers only failures. Permanent ones first.
            raise min(failed.values(),
                      key=lambda failure: isinstance(failure, KafkaError) and failure.retriable)

    try:
        await cluster.retry(attempt, timeout_s)
    except KafkaError as failure:
        failure.results = {**{tp: failed.get(tp, failure) for tp in wanted}, **done}
        raise
    return done


async def list_offsets(cluster: Cluster, times: Mapping[TopicPartition, int], isolation: int = 0,
                       timeout_s: float | None = None,
                       found: Callable[[TopicPartition, Any], None] | None = None,
                       ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return the first record at or after each time (ms), EARLIEST or LATEST; None without one."""
    async def query(node: int, share: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        request = messages.ListOffsetsRequest(replica_id=-1, isolation_level=isolation)
        topics: dict[str, Any] = {}
        for tp, time_ms in share.items():
            row = topics.setdefault(tp[0], request.ListOffsetsTopic(name=tp[0]))
            row.partitions.append(request.ListOffsetsPartition(
                partition_index=tp[1], timestamp=time_ms))
        request.topics = list(topics.values())
        connection = await cluster.connection(node)
        version = connection.version(messages.ListOffsetsRequest)
        if version < _ISOLATION_VERSION:
            request.isolation_level = 0
        response = await connection.send(request, version=version)
        return {TopicPartition(topic.name, row.partition_index): _listed(topic.name, row)
                for topic in response.topics for row in topic.partitions}

    return await by_leader(cluster, times, query, timeout_s, found)


def _listed(topic: str, row: Any) -> Any:
    if row.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
        return None
    if row.error_code:
        return error(row.error_code, context=f"{topic}-{row.partition_index}")
    if row.offset < 0:
        return None
    return OffsetAndTimestamp(row.offset, row.timestamp, row.leader_epoch)


async def reset(cluster: Cluster, states: list[PartitionState], isolation: int) -> None:
    """Look up the positions of partitions according to their `reset`. Raises KafkaError."""
    asked = {state.tp: (state, state.epoch) for state in states}
    times = {}
    for state in states:
        if state.reset in (None, "none"):
            raise NoOffsetForPartitionError(
                f"{state.tp} has no committed offset, and auto.offset.reset is none")
        times[state.tp] = _time_of(state.reset)

    def found(tp: TopicPartition, result: Any) -> None:
        state, epoch = asked[tp]
        if state.epoch == epoch and result is not None:  # Ignore the result after a seek.
            state.move_to(result.offset, result.leader_epoch)

    listed = await list_offsets(cluster, times, isolation, found=found)
    # No record is that recent: start at the end.
    later = {tp: LATEST for tp, result in listed.items() if result is None}
    if later:
        await list_offsets(cluster, later, isolation, found=found)


def _time_of(reset: Any) -> Any:
    """Return the ListOffsets timestamp of a reset: a special value, or ms since 1970."""
    if str(reset).startswith(durations.BY_DURATION):
        return durations.before(reset, time.time_ns() // 1_000_000)
    return TIMES.get(reset, reset)


async def validate(cluster: Cluster, states: list[PartitionState],
                   moves: bool = True) -> list[PartitionState]:
    """Compare positions with the new leaders' logs.

    Moves partitions back whose log was truncated below the position, and returns them. A
    partition's `validate` is the leader epoch of the request. moves: False raises instead of
    moving. Raises KafkaError, LogTruncationError.
    """
    asked = {state.tp: (state, state.epoch, state.record_epoch) for state in states}
    positions = {state.tp: state.position or 0 for state in states}

    async def query(node: int, share: dict[TopicPartition, Any]) -> dict[TopicPartition, Any]:
        request = messages.OffsetForLeaderEpochRequest(replica_id=-1)
        topics: dict[str, Any] = {}
        for tp, (_, _, epoch) in share.items():
            row = topics.setdefault(tp[0], request.OffsetForLeaderTopic(topic=tp[0]))
            info = cluster.metadata.partition(*tp)
            row.partitions.append(request.OffsetForLeaderPartition(
                partition=tp[1], current_leader_epoch=info.leader_epoch if info else -1,
                leader_epoch=epoch))
        request.topics = list(topics.values())
        response = await cluster.send(node, request)
        return {
            TopicPartition(topic.topic, row.partition):
                error(row.error_code, context=f"{topic.topic}-{row.partition}")
                if row.error_code else (row.leader_epoch, row.end_offset)
            for topic in response.topics for row in topic.partitions
        }

    found = await by_leader(cluster, asked, query)
    cut = []
    for tp, (_, end) in found.items():
        state, epoch, record_epoch = asked[tp]
        # The application reads concurrently. A record of a later epoch came from the new leader
        # itself.
        was_cut = (state.epoch == epoch and state.record_epoch == record_epoch
                   and 0 <= end < positions[tp])
        if was_cut and not moves:
            raise _truncated(tp, positions[tp], end)  # Each poll raises until a seek.
        state.validate = -1
        if was_cut:
            state.move_to(end, state.record_epoch)
            cut.append(state)
    return cut


def _truncated(tp: TopicPartition, position: int, end: int) -> LogTruncationError:
    made = LogTruncationError(f"{tp}: the log was cut at {end}, before the position {position}, "
                              "and auto.offset.reset is none", remedy="seek to continue")
    made.partition, made.offset = tp, end
    return made
