"""The topic `_schemas`: created and checked at the start, followed, and written.

Owns: the consumer, the producer and the task that applies records to the store.
Invariants: the registry does not start on a topic that loses records: it has one partition and the
  cleanup policy `compact`; append() returns after the record was applied to the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pylog import supervisor
from pylog.client import TopicPartition, aio
from pylog.client.admin.admin import Admin
from pylog.client.admin.types import ConfigResource, NewTopic, ResourceType
from pylog.client.errors import (
    KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError,
)
from pylog.registry import errors
from pylog.registry.store import Store

log = logging.getLogger("pylog.registry")

REPLICAS = 3
POLL_S = 1.0
POLL_RECORDS = 5000
RETRY_S = 1.0
STALE_S = 10.0
REQUEST_MS = 15_000


class TopicError(Exception):
    """The topic cannot store a registry. The message contains the reason and the remedy."""


class SchemaTopic:
    """name: of the topic. settings: of the client. timeout_s: for a write. seconds: a monotonic
    clock.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], store: Store, timeout_s: float,
                 seconds: Callable[[], float]):
        self.name = name
        self.store = store
        self._settings = {"client.id": "pylog-registry", **settings}
        self._timeout_s = timeout_s
        self._seconds = seconds
        self._read_s = seconds()  # When the topic was read without an error.
        self._partition = TopicPartition(name, 0)
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._consumer: aio.Consumer | None = None
        self._producer: aio.Producer | None = None

    async def start(self) -> None:
        """Create or check the topic, and read it to its end. Raises TopicError, KafkaError."""
        async with Admin.from_settings(self._settings) as admin:
            await self._prepare(admin)
        self._consumer = aio.Consumer.from_settings({
            **self._settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
        self._producer = aio.Producer.from_settings({
            **self._settings, "acks": "all", "linger.ms": 0, "request.timeout.ms": REQUEST_MS,
            "delivery.timeout.ms": max(REQUEST_MS, int(self._timeout_s * 1000))})
        await self._consumer.start()
        await self._producer.start()
        await self._consumer.assign([self._partition])
        end = (await self._consumer.end_offsets([self._partition]))[self._partition]
        while await self._consumer.position(self._partition) < end:
            await self._read()
        self.store.position = max(self.store.position, end)
        self._task = asyncio.get_running_loop().create_task(
            supervisor.restarting("topic of schemas", self._follow))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for client in (self._consumer, self._producer):
            if client is not None:
                await client.close()

    async def _prepare(self, admin: Admin) -> None:
        try:
            found = (await admin.describe_topics([self.name]))[self.name]
        except UnknownTopicOrPartitionError:
            brokers = len((await admin.describe_cluster()).nodes)
            with contextlib.suppress(TopicAlreadyExistsError):  # Another registry created it.
                await admin.create_topics([NewTopic(
                    self.name, 1, min(REPLICAS, brokers), configs={"cleanup.policy": "compact"})])
            found = (await admin.describe_topics([self.name]))[self.name]
        if len(found.partitions) != 1:
            raise TopicError(f"The topic {self.name} has {len(found.partitions)} partitions, but "
                             "a schema registry needs exactly one. Use another topic with "
                             "schema.registry.topic")
        resource = ConfigResource(ResourceType.TOPIC, self.name)
        configs = (await admin.describe_configs([resource]))[resource]
        policy = next((entry.value for entry in configs.values()
                       if entry.name == "cleanup.policy"), None)
        if policy != "compact":
            raise TopicError(
                f"The topic {self.name} has cleanup.policy={policy}, which deletes schemas. "
                "Expected compact. Set it with: pylog configs set "
                f"cleanup.policy=compact --topic {self.name}")

    @property
    def is_followed(self) -> bool:
        """Return True if the topic was read recently without an error."""
        return self._seconds() - self._read_s < STALE_S

    def check_followed(self) -> None:
        """Raise RegistryError unless the topic was read recently."""
        if not self.is_followed:
            raise errors.RegistryError(
                503, f"The topic {self.name} was not read for "
                f"{self._seconds() - self._read_s:.0f} s")

    async def _follow(self) -> None:
        """Apply records for ever. Retries after errors of the cluster."""
        while True:
            try:
                await self._read()
            except KafkaError as error:
                log.warning("cannot read the topic of schemas; retrying",
                            extra={"topic": self.name, "error": str(error)})
                await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        assert self._consumer is not None
        for record in await self._consumer.poll(POLL_S, POLL_RECORDS):
            self.store.apply(record.offset, record.key, record.value, record.timestamp)
        self._read_s = self._seconds()
        while self._waiters and self._waiters[0][0] < self.store.position:
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)

    async def append(self, key: bytes, value: bytes | None) -> int:
        """Write a record, wait until it is applied, and return its offset. Raises RegistryError."""
        assert self._producer is not None
        try:
            async with asyncio.timeout(self._timeout_s):
                delivery = await self._producer.send(self.name, value, key, partition=0)
                offset = (await delivery).offset
                await self.applied(offset)
                return offset
        except TimeoutError:
            raise errors.RegistryError(
                errors.TIMED_OUT, f"The write was not acknowledged within {self._timeout_s:g} s. "
                "It may still take effect; repeat the request") from None
        except KafkaError as error:
            raise errors.RegistryError(
                errors.STORE_FAILED, f"Cannot write to the topic {self.name}: {error}") from None

    async def applied(self, offset: int) -> None:
        """Wait until the record at an offset is applied."""
        if self.store.position > offset:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._waiters, (offset, self._count, waiter))
        await waiter
