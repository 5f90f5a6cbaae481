"""Applies committed metadata records to this broker, in order. No other code causes these effects.

Owns: the task that registers this broker again after its listeners changed.
Invariants: every delta passes through _apply(), in order, whichever node wrote its records; a
  failed effect is logged, and the others still run, including those on other topics; a topic's
  grants are revoked before its logs close, and again after its logs were opened or changed, so that
  no request is sent to old logs.
Source: Kafka's BrokerMetadataPublisher.
"""

from __future__ import annotations

import asyncio
import logging

from pylog import supervisor
from pylog.api.cluster.client_quotas import resolve_later
from pylog.eventloop.threads import in_thread
from pylog.metadata.image.image import RESOURCE_BROKER, RESOURCE_TOPIC, Delta

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.server.heartbeat_cache import Repeats
    from pylog.metadata.image.image import Image
    from pylog.replication.membership import Membership
    from pylog.replication.replicas import Replicas

log = logging.getLogger("pylog.publisher")


class Publisher:
    """metadata: a MetadataService. Its records are applied to `logs`, `grants`, `quotas` and the
    `coordinators`. apply_settings: applies the broker's settings to the composed broker; blocks,
    and returns the listeners' addresses if they changed, else None. apply_security: gets the
    current access rules and credentials, and the changed keys.
    """

    def __init__(self, node_id: int, metadata, logs, grants, quotas, coordinators, apply_settings,
                 apply_security=lambda security, changed: None):
        self._node_id = node_id
        self._metadata = metadata
        self._logs = logs
        self._grants = grants
        self._quotas = quotas
        self._coordinators = list(coordinators)
        self._apply_settings = apply_settings
        self._security = apply_security
        self._registering: asyncio.Task | None = None
        self.replicas: Replicas | None = None  # None without other brokers.
        self.repeats: Repeats | None = None  # Heartbeat responses that reactors repeat.
        self.name_nodes: Callable[[Image], None] | None = None  # Takes the nodes' addresses.
        self.membership: Membership | None = None  # None without other brokers.

    def add_coordinator(self, coordinator) -> None:
        """Add a coordinator that was created later, with the currently applied topics."""
        self._coordinators.append(coordinator)

    async def run(self) -> None:
        """Apply records as they are committed, until cancelled."""
        tail = self._metadata.tail
        while True:
            await tail.grown()
            while (delta := tail.take()) is not None:
                await self._apply(delta)
                tail.applied(delta.after.offset)

    async def stop(self, task: asyncio.Task) -> None:
        """Cancel run(), which is `task`. Records that are not applied yet are applied at the next
        start.
        """
        tasks = [task] if self._registering is None else [task, self._registering]
        for running in tasks:
            running.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def registered(self) -> None:
        """Wait until the image contains this broker's current listeners."""
        if self._registering is not None:
            # Ignore its result: a failed registration does not concern later requests.
            await asyncio.wait([self._registering])
        tail = self._metadata.tail
        await tail.wait(tail.newest.offset)

    # ---- effects --------------------------------------------------------------------------------

    async def _apply(self, delta: Delta) -> None:
        for effect in (self._apply_broker_settings, self._apply_brokers, self._apply_topics,
                       self._apply_topic_configs, self._apply_quotas, self._apply_security,
                       self._void_repeats, self._save_image):
            try:
                await effect(delta)
            except Exception:
                # The other effects must still run.
                supervisor.report("metadata publisher", "a metadata change could not be applied",
                                  effect=effect.__name__, offset=delta.after.offset)

    async def _apply_broker_settings(self, delta: Delta) -> None:
        if not any(kind == RESOURCE_BROKER and name in ("", str(self._node_id))
                   for kind, name in delta.configs):
            return
        self._metadata.take_broker_configs(delta.after)
        await in_thread(self._logs.reconfigure)
        addresses = await in_thread(self._apply_settings)
        registrar = self.membership or self._metadata
        fault = None
        if addresses is not None:
            fault = registrar.register_again(addresses)
        elif not self._metadata.reports_cordons():
            fault = registrar.cordon()
        if fault is not None:
            # Not awaited: it is a controller decision, which may wait for records applied here.
            self._registering = asyncio.get_running_loop().create_task(
                supervisor.reporting("registration", fault))

    async def _apply_brokers(self, delta: Delta) -> None:
        if self.replicas is not None and delta.after.brokers is not delta.before.brokers:
            self.replicas.take_brokers(delta.after)
            if self.name_nodes is not None:
                self.name_nodes(delta.after)

    async def _apply_topics(self, delta: Delta) -> None:
        if not delta.topic_ids:
            return
        gone, made, changed = topic_changes(delta)
        changes = self.replicas.changes(delta) if self.replicas is not None else {}
        if self.replicas is not None:
            self.replicas.stop(changes)
        for topic in gone:
            self._grants.remove(topic.name)  # Before its logs close.
        await in_thread(self._apply_logs, delta.after, gone, made, changed, changes)
        if self.replicas is not None:
            self.replicas.start(delta.after, changes)
        for topic in (*gone, *made, *changed):
            self._grants.remove(topic.name)
        for coordinator in self._coordinators:
            _each(gone, lambda topic, to=coordinator: to.topic_deleted(topic.name))
            _each((*made, *changed), coordinator.topic_changed)

    def _apply_logs(self, image, gone, made, changed, changes) -> None:
        """Close, open and change partition logs. Blocks."""
        logs, roles = self._logs, self._metadata.local_roles
        _each(gone, lambda topic: logs.delete(topic.name))
        _each(made, lambda topic: logs.create(
            topic.name, topic.id, roles(topic), image.topic_config(topic.name)))
        _each([topic for topic in changed if changes and changes[topic.id].drop],
              lambda topic: logs.drop(topic.name, changes[topic.id].drop))
        _each(changed, lambda topic: logs.assume(
            topic.name, roles(topic), changes[topic.id].open if changes else ()))

    async def _apply_topic_configs(self, delta: Delta) -> None:
        after = delta.after
        topics = [after.topics[name] for kind, name in delta.configs if kind == RESOURCE_TOPIC
                  and name in delta.before.topics and name in after.topics
                  and delta.before.topics[name].id == after.topics[name].id]
        if topics:
            await in_thread(_each, topics, lambda topic: self._logs.configure(
                topic.name, after.topic_config(topic.name)))
            if self.replicas is not None:
                self.replicas.take_topic_configs(after, topics)

    async def _apply_quotas(self, delta: Delta) -> None:
        if delta.client_quotas:
            self._quotas.take(delta.after.client_quotas)
            resolve_later(self._quotas)

    async def _apply_security(self, delta: Delta) -> None:
        if delta.security:
            self._security(delta.after.security, delta.security)

    async def _void_repeats(self, delta: Delta) -> None:
        """Repeated responses depend on access rules, settings and features."""
        if self.repeats is not None and (
                delta.security or delta.after.features is not delta.before.features
                or any(kind != RESOURCE_TOPIC for kind, _ in delta.configs)):
            self.repeats.void()

    async def _save_image(self, delta: Delta) -> None:
        if self._metadata.is_image_due:
            await in_thread(self._metadata.save_image)


def topic_changes(delta: Delta) -> tuple:
    """Return (deleted topics, new topics, changed topics), as lists of Topic."""
    before, after = delta.before.topics_by_id, delta.after.topics_by_id
    gone = [before[id_] for id_ in delta.topic_ids if id_ in before and id_ not in after]
    made = [after[id_] for id_ in delta.topic_ids if id_ in after and id_ not in before]
    changed = [after[id_] for id_ in delta.topic_ids if id_ in after and id_ in before]
    return gone, made, changed


def _each(topics, effect) -> None:
    """Apply an effect to each topic. A failure on one topic does not affect the others."""
    for topic in topics:
        try:
            effect(topic)
        except Exception:
            supervisor.report(
                "metadata publisher", "a metadata change could not be applied", topic=topic.name)
