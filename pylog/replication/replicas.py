"""This broker's replicas: led, followed or removed, according to the metadata.

Owns: the followed replicas; replication.leadership owns the led ones, replication.fetching the
  fetches.
Invariants: writes to a replica's log stop before the replica changes its role or directory, or is
  removed; a log that was closed or replaced gets its role once it is open.
Source: Kafka's ReplicaManager.
"""

from __future__ import annotations

import logging

from pylog.replication.roles import Registered, commands

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from typing import Any

    from pylog.log.manager import LogManager
    from pylog.metadata.image.image import Delta, Image, Topic
    from pylog.replication.assignments import Assignments
    from pylog.replication.departures import Departures
    from pylog.replication.leadership import Leadership
    from pylog.replication.roles import Commands
    from pylog.replication.throttles import Throttles

log = logging.getLogger("pylog.replication")


class Replicas:
    """fetchers: follow, unfollow and set_nodes as in replication.fetching. listener: name of the
    inter-broker listener.
    """

    def __init__(self, node_id: int, logs: LogManager, leadership: Leadership, fetchers: Any,
                 assignments: Assignments, throttles: Throttles, listener: str,
                 departures: Departures):
        self.leadership = leadership
        self.assignments = assignments
        self.fetchers = fetchers
        self.throttles = throttles
        self._node_id = node_id
        self._logs = logs
        self._listener = listener
        self._departures = departures

    def changes(self, delta: Delta) -> dict[bytes, Commands]:
        """Return {topic id: Commands} for the topics that a delta changes."""
        before, after = delta.before.topics_by_id, delta.after.topics_by_id
        return {id_: commands(before.get(id_), after.get(id_), self._node_id)
                for id_ in delta.topic_ids}

    def take_brokers(self, image: Image) -> None:
        """Apply broker changes."""
        self.fetchers.set_nodes({
            id_: Registered(endpoint.host, endpoint.port, broker.epoch)
            for id_, broker in image.brokers.items() for endpoint in broker.endpoints
            if endpoint.name == self._listener})
        self.leadership.take_brokers(image)
        self._departures.take_brokers(image)

    def stats(self) -> dict[str, int]:
        """Return counters since the start, and current values. Any thread may call it."""
        led, lag = self.leadership, self.fetchers.lag()
        return {"under_replicated": led.under_replicated, "shrinks": led.shrinks,
                "expands": led.expands, "refusals": led.failures, "followed": len(lag),
                "lag": max(0, *(row[3] for row in lag)) if lag else 0, **self.fetchers.stats(),
                **self.throttles.stats()}

    def stop(self, changes: dict[bytes, Commands]) -> None:
        """Stop fetching replicas that change, before they change."""
        for topic_id, wanted in changes.items():
            for index in {*wanted.stop, *wanted.drop}:
                self.fetchers.unfollow(topic_id, index)

    def lose(self, image: Image, offline: list[tuple[str, int]]) -> None:
        """Stop using partitions on failed disks or without files: if they were still fetched, their
        leaders would treat them as caught up. Report those without files.
        """
        for name, index in offline:
            topic = image.topics.get(name)
            if topic is not None:
                self.fetchers.unfollow(topic.id, index)
                self.leadership.rest(topic.id, index)
        for name in {name for name, _ in offline} & image.topics.keys():
            self.assignments.check(image.topics[name])

    def pause(self, image: Image, followed: list[tuple[str, int]]) -> set[str]:
        """Stop fetching followed partitions until begin() of their topics, whose names are
        returned.
        """
        topics = {name: image.topics[name] for name, _ in followed if name in image.topics}
        for name, index in followed:
            if name in topics:
                self.fetchers.unfollow(topics[name].id, index)
        return {*topics}

    def start(self, image: Image, changes: dict[bytes, Commands]) -> None:
        """Start leading and following, after the logs got their roles."""
        for topic_id, wanted in changes.items():
            topic = image.topics_by_id.get(topic_id)
            for index in wanted.drop:
                self.leadership.rest(topic_id, index)
            for index, state in enumerate(topic.partitions if topic is not None else ()):
                if state.leader != self._node_id:
                    self.leadership.rest(topic_id, index)
            if topic is not None:
                self.throttles.take(image, topic)
                self._begin(topic, wanted.lead, wanted.follow)

    def take_topic_configs(self, image: Image, topics: list[Topic]) -> None:
        """Apply changed topic configs."""
        for topic in topics:
            self.throttles.take(image, topic)

    def begin(self, image: Image, topic: Topic) -> None:
        """Start every replica of a topic: at a broker start, and for logs that opened late."""
        self.throttles.take(image, topic)
        wanted = commands(None, topic, self._node_id)
        self._begin(topic, wanted.lead, wanted.follow)

    def _begin(self, topic: Topic, lead: list, follow: list) -> None:
        self.assignments.check(topic)
        for index in lead:
            partition_log = self._usable(topic.name, index)
            if partition_log is not None and partition_log.is_leader:
                self.leadership.lead(topic, index, partition_log)
        for index in follow:
            partition_log, state = self._usable(topic.name, index), topic.partitions[index]
            if partition_log is not None:
                self.fetchers.follow(partition_log, topic.id, topic.name, index, state.leader,
                                     state.leader_epoch)

    def _usable(self, name: str, index: int) -> Any:
        """Return the partition's log, None without a log, with a failed disk or without files."""
        found = self._logs.get(name, index)
        return None if found is None or found.offline else found
