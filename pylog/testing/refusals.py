"""Responses that carry an error code that a test chose.

Owns: nothing.
Invariants: (1) a refused Produce or OffsetCommit never reaches the broker; (2) a refused Fetch is
  served, and each partition of its response gets the error and loses its records: a request of a
  fetch session names only the partitions that changed.
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
    """Raises BrokerFailed for an API that cannot be refused."""
    if api_key not in REFUSABLE:
        raise BrokerFailed("only Produce, Fetch and OffsetCommit can be answered with an error "
                           "code: name one of them as `api`")


def response_to(request: bytes, error_code: int) -> bytes | None:
    """The frame that refuses a Produce or an OffsetCommit, both with their sizes; None for a
    Produce that asks for no response."""
    frame = memoryview(request)[_SIZE.size:]
    api_key, version, correlation_id, _, position = codec.decode_request_header(frame)
    asked = codec.decode_request(api_key, version, frame, position)
    if api_key == api.PRODUCE and asked.acks == 0:
        return None
    refused = _produce if api_key == api.PRODUCE else _offset_commit
    return codec.response_frame(api_key, version, correlation_id, refused(asked, error_code))


def placeholder(correlation_id: int) -> bytes:
    """A request in place of the refused one: its response marks the refusal's turn."""
    return _SIZE.pack(_HEADER.size) + _HEADER.pack(api.API_VERSIONS, 0, correlation_id, -1)


def refused_fetch(version: int, response: bytes, error_code: int) -> bytes | None:
    """A Fetch response, with its size, in which each partition has the error; None without any."""
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
