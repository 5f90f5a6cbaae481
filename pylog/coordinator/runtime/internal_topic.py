"""The internal topic with a coordinator's state: the partition of a key, the topic's creation.

Owns: the creation under way.
Invariants: (1) a key's partition depends on the key and the count of partitions alone, and is the
  one that Kafka computes; (2) the topic is created once, however many ask for it at a time; (3) the
  topic is created with the configured replication factor or not at all, because nothing raises it
  later. Only a broker that no other can join creates it with one replica instead.
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
    """What a coordinator sees of its broker."""

    @property
    def node_id(self) -> int: ...

    @property
    def now_ms(self) -> Callable[[], int]:
        """The wall clock."""

    @property
    def image(self) -> Image: ...

    @property
    def logs(self) -> Any: ...          # A log.manager.LogManager; tests give a part of one.

    @property
    def controller(self) -> Any: ...    # Whatever can create_topics().

    @property
    def settings(self) -> Any: ...      # Name -> value, each of the type that the catalogue names.

    @property
    def later(self) -> Callable[[Callable[[], object]], object]:
        """Calls a function at the end of this turn of the loop: see turn.Turn."""

    @property
    def credentials(self) -> Any: ...   # peer.credentials towards the other brokers, or None.


class TopicSpec(NamedTuple):
    """What an internal topic is made with. min_insync: at most as many as the replicas; None: the
    broker's own."""

    name: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]
    min_insync: int | None = None


def java_hash(text: str) -> int:
    """String.hashCode of Java: over UTF-16 units, as a signed 32-bit integer."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(KEYS_HASHED_MAX)
def partition_of(key: str, count: int) -> int:
    """The partition, of `count`, that has `key` (1)."""
    value = java_hash(key)
    return (0 if value == -2**31 else abs(value)) % count


class InternalTopic:
    """The topic of `spec` in the cluster of `node`."""

    def __init__(self, spec: TopicSpec, node: Node):
        self.spec = spec
        self._node = node
        self._creating: asyncio.Future[bool] | None = None
        self._logged_reason: str | None = None     # Why the last creation failed.

    @property
    def current(self) -> Topic | None:
        """The topic as the published image has it."""
        return self._node.image.topics.get(self.spec.name)

    async def ensure(self) -> Error:
        """Create the topic unless it exists. Keeps (2).

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
            # Keeps (3).
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
