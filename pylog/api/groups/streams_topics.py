"""Creation of internal topics of Streams groups.

Owns: pending requests for topics, and the errors of the last ones.
Invariants: a topic is requested once at a time, and not again until its last error has expired; at
  most FAULTS_MAX errors are stored, the oldest are dropped.
Source: KIP-1071; Kafka's AutoTopicCreationManager.
"""

from __future__ import annotations

import asyncio
import logging

from pylog import supervisor
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from pylog.coordinator.groups.streams.topology import Missing

TIMEOUT_MS = 30_000
FAULTS_MAX = 1000
SHOWN_MAX = 3

log = logging.getLogger("pylog.coordinator")


class InternalTopics:
    """controller: any object with create_topics(). now_ms: a clock."""

    def __init__(self, controller: Any, now_ms: Callable[[], int]):
        self._controller = controller
        self._now_ms = now_ms
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._faults: dict[str, tuple[str, int]] = {}  # the error, and its expiry

    def create(self, topics: Iterable[Missing], pause_ms: int, mutations: Any) -> str:
        """Request topics without waiting. Returns the last attempt's error or "". pause_ms:
        lifetime of an error, during which the topic is not requested again; mutations: as for
        controller.create_topics.
        """
        faults = self._known(topics)
        wanted = [topic for topic in topics
                  if topic.name not in faults and topic.name not in self._under_way]
        if wanted:
            task = asyncio.ensure_future(supervisor.reporting(
                "Streams topics", self._create(wanted, pause_ms, mutations)))
            for topic in wanted:
                self._under_way[topic.name] = task
        shown = [f"{name} ({fault})" for name, fault in list(faults.items())[:SHOWN_MAX]]
        more = f" and {len(faults) - SHOWN_MAX} more" if len(faults) > SHOWN_MAX else ""
        return f"Creation failed: {', '.join(shown)}{more}." if shown else ""

    def _known(self, topics: Iterable[Missing]) -> dict[str, str]:
        now_ms = self._now_ms()
        return {topic.name: self._faults[topic.name][0] for topic in topics
                if topic.name in self._faults and self._faults[topic.name][1] > now_ms}

    async def _create(self, topics: list[Missing], pause_ms: int, mutations: Any) -> None:
        new = messages.CreateTopicsRequest
        request = new(timeout_ms=TIMEOUT_MS, topics=[new.CreatableTopic(
            name=topic.name, num_partitions=topic.partitions, replication_factor=topic.factor,
            configs=[new.CreatableTopicConfig(name=name, value=value)
                     for name, value in topic.configs]) for topic in topics])
        try:
            for result in await self._controller.create_topics(request, mutations=mutations):
                if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    self._failed(result.name, result.message or ErrorCode.of(result.error).message,
                                 pause_ms)
        finally:
            for topic in topics:
                del self._under_way[topic.name]

    def _failed(self, name: str, fault: str, pause_ms: int) -> None:
        """Store an error; drop the oldest ones above FAULTS_MAX."""
        log.warning("an internal topic could not be created", extra={
            "topic": name, "reason": fault})
        self._faults.pop(name, None)
        self._faults[name] = fault, self._now_ms() + pause_ms
        if len(self._faults) > FAULTS_MAX:
            del self._faults[next(iter(self._faults))]
