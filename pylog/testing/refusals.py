"""Responses with an error code chosen by a test.

Owns: nothing.
Invariants: a rejected Produce or OffsetCommit never reaches the broker; a rejected Fetch is
  processed, and every partition in its response gets the error and loses its records, because a
  request of a fetch session contains only the changed partitions.
Source: Kafka's message schemas.
"""

from __future__ import annotations

import struct
from typing import Any

from pylog.protocol import api, codec, messages
from pylog.testing.errors import BrokerFailed

REFUSABLE = (api.PRODUCE, api.OFFSET_COMMIT, api.FETCH)
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")     # API key, version, correlation id, no client id.


def check(api_key: int | None) -> None:
    """Raise BrokerFailed if requests of this API cannot be rejected."""
    if api_key not in REFUSABLE:
        raise BrokerFailed("only Produce, Fetch and OffsetCommit can be answered with an error "
                           "code: name one of them as `api`")


def response_to(request: bytes, error_code: int) -> bytes | None:
    """Return the response frame that rejects a Produce or OffsetCommit, including its size.

    Returns None for a Produce that expects no response.
    """
    frame = memoryview(request)[_SIZE.size:]
    api_key, version, correlation_id, _, position = codec.decode_request_header(frame)
    asked = codec.decode_request(api_key, version, frame, position)
    if api_key == api.PRODUCE and asked.acks == 0:
        return None
    refused = _produce if api_key == api.PRODUCE else _offset_commit
    return codec.response_frame(api_key, version, correlation_id, refused(asked, error_code))


def placeholder(correlation_id: int) -> bytes:
    """Return a request to send instead of the rejected one.

    Its response keeps the rejection in order among the other responses.
    """
    return _SIZE.pack(_HEADER.size) + _HEADER.pack(api.API_VERSIONS, 0, correlation_id, -1)


def refused_fetch(version: int, response: bytes, error_code: int) -> bytes | None:
    """Return a Fetch response with the error in every partition, or None if it has no partitions.

    Frames include their size.
    """
    frame = memoryview(response)[_SIZE.size:]
    correlation_id, position = codec.decode_response_header(api.FETCH, version, frame)
    answer = codec.decode_response(api.FETCH, version, frame, position)
    rows = [row for topic in answer.responses for row in topic.partitions]
    for row in rows:
        row.error_code, row.records = error_code, None
    return codec.response_frame(api.FETCH, version, correlation_id, answer) if rows else None


def _produce(asked: Any, error_code: int) -> Any:
    new = messages.ProduceResponse
    return new(responses=[
        new.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[
            new.PartitionProduceResponse(index=row.index, error_code=error_code, base_offset=-1)
            for row in topic.partition_data])
        for topic in asked.topic_data])


def _offset_commit(asked: Any, error_code: int) -> Any:
    new = messages.OffsetCommitResponse
    return new(topics=[
        new.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[
            new.OffsetCommitResponsePartition(
                partition_index=row.partition_index, error_code=error_code)
            for row in topic.partitions])
        for topic in asked.topics])
