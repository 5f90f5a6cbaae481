"""Throttles of replication: the rates, and the partitions to which they apply.

Owns: the two rates of this broker, as leader and as follower.
Invariants: without a rate, or without a throttled replica, nothing is throttled; a follower in the
  ISR is never throttled.
Source: KIP-73; Kafka's ReplicationQuotaManager; kafka-reassign-partitions --throttle, which sets
  and removes these configs.
"""

from __future__ import annotations

from pylog._native.server.rate_limit import NONE, Throttle

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Any

    from pylog.log.manager import LogManager
    from pylog.metadata.image.image import Image, Topic

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", \
    "follower.replication.throttled.rate"
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", \
    "follower.replication.throttled.replicas"
EVERY_REPLICA = "*"


class Throttles:
    """leading, following: native rates, for reactors and fetchers. now_ms: CLOCK_MONOTONIC."""

    def __init__(self, settings: Any, node_id: int, logs: LogManager, now_ms: Callable[[], int]):
        self._settings = settings
        self._node_id = node_id
        self._logs = logs
        self._now_ms = now_ms
        self._throttled: set[bytes] = set()  # ids of throttled topics
        shape = (settings["replication.quota.window.num"],
                 settings["replication.quota.window.size.seconds"] * 1000)
        self.leading, self.following = Throttle(*shape), Throttle(*shape)

    def take_settings(self) -> None:
        """Apply the rates from the settings. Any thread may call it."""
        for native, name in ((self.leading, LEADER_RATE), (self.following, FOLLOWER_RATE)):
            value = self._settings.value(name)
            native.set(NONE if value is None else value)

    def take(self, image: Image, topic: Topic) -> None:
        """Mark the throttled partitions among a topic's open logs."""
        configs = image.topic_config(topic.name)
        leading = self._own(configs.get(LEADERS, ""), topic)
        following = self._own(configs.get(FOLLOWERS, ""), topic)
        if not leading and not following:
            if topic.id not in self._throttled:
                return
            self._throttled.discard(topic.id)
        else:
            self._throttled.add(topic.id)
        for index in range(len(topic.partitions)):
            partition_log = self._logs.get(topic.name, index)
            if partition_log is not None:
                partition_log.set_throttled(index in leading, index in following)

    def stats(self) -> dict[str, int]:
        """Return the throttled rates in bytes per second."""
        now_ms = self._now_ms()
        return {"throttled_leading": int(self.leading.rate(now_ms)),
                "throttled_following": int(self.following.rate(now_ms))}

    def _own(self, text: str, topic: Topic) -> Container[int]:
        """Return the partitions whose replica on this broker is in a throttled-replicas config."""
        if text.strip() == EVERY_REPLICA:
            return range(len(topic.partitions))
        found = set()
        for entry in text.split(","):
            partition, _, broker = entry.strip().partition(":")
            if broker == str(self._node_id):
                found.add(int(partition))
        return found
