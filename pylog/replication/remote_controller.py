"""The interface of a remote active controller for this broker's handlers.

Owns: this broker's block of producer ids.
Invariants: a producer id is allocated once.
Source: KIP-590 (requests that brokers send themselves), KIP-730 (producer ids).
"""

from __future__ import annotations

import asyncio

from pylog.metadata.controller.partitions.topics import ProducerIds, TopicResult
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.replication.channel import ControllerChannel


class RemoteController:
    """channel: to the active controller. lose: stops leading and following partitions [(topic,
    index)].
    """

    def __init__(self, channel: ControllerChannel, node_id: int,
                 lose: Callable[[list[tuple[str, int]]], object]):
        self._channel = channel
        self._node_id = node_id
        self._lose = lose
        self._sending = asyncio.Lock()
        self._producer_ids = ProducerIds(0, 0)

    async def create_topics(self, request: Any, mutations: Any = None) -> list:
        """Send this broker's own CreateTopicsRequest; return TopicResults. The image may get the
        topics a moment later. mutations: unused, because the controller has the quotas.
        """
        try:
            response = await self._channel.call(request)
        except PeerError as error:
            return [TopicResult(topic.name, ErrorCode.REQUEST_TIMED_OUT, str(error))
                    for topic in request.topics]
        return [TopicResult(
            topic.name, ErrorCode.of(topic.error_code), topic.error_message,
            bytes(topic.topic_id), topic.num_partitions, topic.replication_factor)
            for topic in response.topics]

    async def next_producer_id(self) -> int:
        """Return a producer id that was never allocated before. Raises Refusal."""
        async with self._sending:
            if not self._producer_ids.count:
                self._producer_ids = await self._block()
            first, count = self._producer_ids
            self._producer_ids = ProducerIds(first + 1, count - 1)
            return first

    async def _block(self) -> ProducerIds:
        try:
            response = await self._channel.call(messages.AllocateProducerIdsRequest(
                broker_id=self._node_id, broker_epoch=self._channel.broker_epoch))
        except PeerError as error:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        if response.error_code or response.producer_id_len <= 0:
            if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
                self._channel.send_heartbeats()
            # As in Kafka: the producer retries.
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return ProducerIds(response.producer_id_start, response.producer_id_len)

    async def leave_offline(self, offline: list[tuple[str, int]]) -> bool:
        """Stop using partitions on failed disks. The next heartbeat reports the disks, and the
        controller elects other leaders.
        """
        self._lose(offline)
        self._channel.send_heartbeats()
        return True
