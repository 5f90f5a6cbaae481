"""Choose the partition of records that do not specify one.

Owns: the state of each partitioner: its index, or its sticky partition.
Invariants: the same key and partition count give the same partition as the client that the
  partitioner is named after; null keys avoid partitions without a leader or with a stalled leader.
Source: KIP-480 and KIP-794 (sticky), Kafka's Java client (murmur2), librdkafka (consistent).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from pylog._native.client.batch_builder import CRC32, MURMUR2, murmur2
from pylog.client.errors import ConfigError


class Partitioner(Protocol):
    """Interface of a partitioner.class object. Names in NAMES and plain functions f(topic, key
    bytes or None, partitions, available) -> partition are accepted too.
    """

    def choose(self, topic: str, key: bytes | None, partitions: Sequence[int],
               available: Sequence[int], size: int) -> int:
        """Return a partition. partitions: all, ascending. available: those with a leader, never
        empty. size: bytes of the record.
        """


class Sticky:
    """Choose a random partition for each batch_bytes.

    If `load` (topic, partition -> batches) is set, partitions with fewer waiting batches are more
    likely. Partitions in `stalled` (topic -> partitions) are avoided while others exist.
    """

    def __init__(self, batch_bytes: int):
        self.batch_bytes = max(batch_bytes, 1)
        self.load: Callable[[str, int], int] | None = None
        self.stalled: Callable[[str], Collection[int]] | None = None
        self._stuck: dict[str, list[int]] = {}

    def choose(self, topic: str, key: bytes | None, partitions: Sequence[int],
               available: Sequence[int], size: int) -> int:
        stuck = self._stuck.get(topic)
        if stuck is None or stuck[1] >= self.batch_bytes or stuck[0] not in available:
            others = [p for p in available if stuck is None or p != stuck[0]] or list(available)
            stuck = self._stuck[topic] = [self._next(topic, others), 0]
        stuck[1] += size
        return stuck[0]

    def _next(self, topic: str, others: list[int]) -> int:
        if self.stalled is not None:
            stalled = self.stalled(topic)
            others = [p for p in others if p not in stalled] or others
        if self.load is None or len(others) == 1:
            return random.choice(others)
        loads = [self.load(topic, partition) for partition in others]
        most = max(loads) + 1
        return random.choices(others, [most - load for load in loads])[0]

    def bytes_left(self, topic: str) -> int:
        """Return how many more bytes go to the current sticky partition."""
        stuck = self._stuck.get(topic)
        return 0 if stuck is None else self.batch_bytes - stuck[1]


class Default(Sticky):
    """Murmur2 of the key, as in Java. Sticky for null keys, or for all records with ignore_keys."""

    def __init__(self, batch_bytes: int, ignore_keys: bool = False):
        super().__init__(batch_bytes)
        self.ignore_keys = ignore_keys

    def choose(self, topic: str, key: bytes | None, partitions: Sequence[int],
               available: Sequence[int], size: int) -> int:
        if key is not None and not self.ignore_keys:
            return murmur2(key) % len(partitions)
        return super().choose(topic, key, partitions, available, size)


class Consistent(Sticky):
    """CRC-32 of the key, as in librdkafka. Sticky for null and empty keys; with empty_too, they are
    hashed too.
    """

    def __init__(self, batch_bytes: int, empty_too: bool = False):
        super().__init__(batch_bytes)
        self.empty_too = empty_too

    def choose(self, topic: str, key: bytes | None, partitions: Sequence[int],
               available: Sequence[int], size: int) -> int:
        if key or self.empty_too:
            return zlib.crc32(key or b"") % len(partitions)
        return super().choose(topic, key, partitions, available, size)


class RoundRobin:
    """Use each partition in index, regardless of the key."""

    def __init__(self) -> None:
        self._last_index: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, partitions: Sequence[int],
               available: Sequence[int], size: int) -> int:
        index = self._last_index.get(topic, -1) + 1
        self._last_index[topic] = index
        return available[index % len(available)]


class Custom:
    """Call a plain function that returns the partition."""

    def __init__(self, function: Callable[..., int]):
        self.function = function

    def choose(self, topic: str, key: bytes | None, partitions: Sequence[int],
               available: Sequence[int], size: int) -> int:
        return int(self.function(topic, key, list(partitions), list(available)))


# Names of the Java client's and librdkafka's partitioners.
NAMES: dict[str, Callable[[int, bool], Any]] = {
    "default": Default, "murmur2_random": Default,
    "sticky": lambda batch_bytes, _: Sticky(batch_bytes),
    "uniform": lambda batch_bytes, _: Sticky(batch_bytes),
    "roundrobin": lambda _, __: RoundRobin(),
    "consistent": lambda batch_bytes, _: Consistent(batch_bytes, empty_too=True),
    "consistent_random": lambda batch_bytes, _: Consistent(batch_bytes),
}


def partitioner(given: Any, batch_bytes: int, ignore_keys: bool = False) -> Any:
    """Return the partitioner that partitioner.class specifies. Raises ConfigError."""
    if given is None:
        return Default(batch_bytes, ignore_keys)
    if isinstance(given, str):
        name = given.rpartition(".")[2].lower().removesuffix("partitioner") or "default"
        made = NAMES.get(name)
        if made is None:
            raise ConfigError(f"partitioner.class={given!r}: allowed are {', '.join(NAMES)}")
        return made(batch_bytes, ignore_keys)
    if hasattr(given, "choose"):
        return given
    if callable(given):
        return Custom(given)
    raise ConfigError("partitioner.class is a name, a function, or has a method `choose`")


def native_code(chosen: Any) -> int | None:
    """Return the native kernel's number for a partitioner, or None if Python must choose per row.
    """
    if type(chosen) is Default and not chosen.ignore_keys:
        return MURMUR2
    return CRC32 if type(chosen) is Consistent else None
