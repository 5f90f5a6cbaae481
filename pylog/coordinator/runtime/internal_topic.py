"""A coordinator's internal topic: which partition holds a key, and creating the topic.

Owns: the creation in progress.
Invariants: a key's partition depends only on the key and the partition count, and matches Kafka's;
  concurrent requests share one creation; the topic is created with the configured replication
  factor or not at all, because nothing raises it later. Only a single-broker cluster that no other
  broker can join creates it with one replica.
Source: Kafka's Utils.abs(key.hashCode()) % partitions, DefaultAutoTopicCreationManager, KIP-115.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from pylog.metadata.image.image import Image, Topic
from pylog.protocol import messages
from pylog.protocol.errors import Error, ErrorCode

KEYS_HASHED_MAX = 16_384
CREATE_TIMEOUT_MS = 30_000

log = logging.getLogger("pylog.coordinator")


class Node(Protocol):
    """The broker, as seen by a coordinator."""

    @property
    def node_id(self) -> int: ...

    @property
    def now_ms(self) -> Callable[[], int]:
        """Return the wall clock, in ms."""

    @property
    def image(self) -> Image: ...

    @property
    def logs(self) -> Any: ...  # A storage LogManager; tests pass a subset.

    @property
    def controller(self) -> Any: ...  # Provides create_topics().

    @property
    def settings(self) -> Any: ...  # Setting name -> typed value.

    @property
    def defer(self) -> Callable[[Callable[[], object]], object]:
        """Return a function that schedules a callback for the end of this loop iteration.

        See eventloop.end_of_tick.
        """

    @property
    def credentials(self) -> Any: ...  # peer.credentials for inter-broker connections, or None.


class TopicSpec(NamedTuple):
    """The configuration of an internal topic.

    min_insync: capped at the replication factor; None: use the broker's default.
    """

    name: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]
    min_insync: int | None = None


def java_hash(text: str) -> int:
    """Return Java's String.hashCode(): over UTF-16 code units, as a signed 32-bit integer."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(KEYS_HASHED_MAX)
def partition_of(key: str, count: int) -> int:
    """Return the partition that holds `key` in a topic with `count` partitions."""
    value = java_hash(key)
    return (0 if value == -2**31 else abs(value)) % count


class InternalTopic:
    """The internal topic described by `spec`, in the cluster of `node`."""

    def __init__(self, spec: TopicSpec, node: Node):
        self.spec = spec
        self._node = node
        self._creating: asyncio.Future[bool] | None = None
        self._logged_reason: str | None = None  # Reason of the last failed creation.

    @property
    def current(self) -> Topic | None:
        """Return the topic from the current metadata image."""
        return self._node.image.topics.get(self.spec.name)

    async def ensure(self) -> Error:
        """Create the topic unless it exists. Concurrent calls share one creation.

        Returns COORDINATOR_NOT_AVAILABLE while it cannot be created: clients retry.
        """
        if self.current is None or self._creating is not None:
            if self._creating is None:
                self._creating = asyncio.ensure_future(self._create())
                self._creating.add_done_callback(self._created)
            if not await asyncio.shield(self._creating):
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _created(self, _: asyncio.Future[bool]) -> None:
        self._creating = None

    async def _create(self) -> bool:
        spec, image = self.spec, self._node.image
        factor = 1 if self._node.settings.is_single_broker else spec.replication_factor
        if factor > len(image.brokers):
            # Never create the topic with fewer replicas than configured.
            self._log_failure(logging.WARNING, (
                f"the replication factor is {factor}, registered brokers: {len(image.brokers)}; "
                "start more brokers, or lower the setting"))
            return False
        configs = dict(spec.configs)
        if spec.min_insync is not None:
            configs["min.insync.replicas"] = str(min(spec.min_insync, factor))
        new = messages.CreateTopicsRequest
        result, = await self._node.controller.create_topics(new(
            timeout_ms=CREATE_TIMEOUT_MS, topics=[new.CreatableTopic(
                name=spec.name, num_partitions=spec.partitions,
                replication_factor=factor,
                configs=[new.CreatableTopicConfig(name=name, value=value)
                         for name, value in configs.items()])]))
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._log_failure(
                logging.WARNING if result.error == ErrorCode.INVALID_REPLICATION_FACTOR
                else logging.ERROR, result.message)
            return False
        self._logged_reason = None
        return True

    def _log_failure(self, level: int, reason: str) -> None:
        """Log each reason once: clients retry several times a second."""
        if reason != self._logged_reason:
            self._logged_reason = reason
            log.log(level, "cannot create an internal topic: its coordinators are not available "
                    "until it exists", extra={"topic": self.spec.name, "reason": reason})
