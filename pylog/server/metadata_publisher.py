"""The one cause of effects: what the metadata log says is put into force here, in its order.

Owns: the task that registers this broker again when its listeners changed.
Invariants: (1) every delta of the tail passes through _apply(), in order, whoever wrote its
  records; (2) an effect that fails is logged, and the others follow, those on other topics too; (3)
  a topic's grants are void before its logs close, and again after its logs came or changed, so that
  nobody is sent to old ones.
Source: Kafka's BrokerMetadataPublisher.
"""

from __future__ import annotations

import asyncio
import logging

from pylog import supervisor
from pylog.api.cluster.client_quotas import resolve_later
from pylog.eventloop.threads import in_thread
from pylog.metadata.image.image import RESOURCE_BROKER, RESOURCE_TOPIC, Delta

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.repeats import Repeats
    from pylog.metadata.image.image import Image
    from pylog.replication.membership import Membership
    from pylog.replication.replicas import Replicas

log = logging.getLogger("pylog.publisher")


class Publisher:
    """metadata: a MetadataService, whose records have their effects on `logs`, `grants`, `quotas`
    and the `coordinators`. apply_settings: puts the broker's settings into force where it is
    composed; blocks and returns the listeners' addresses when they changed, else None.
    apply_security: takes the access rules and credentials in force, and which of them changed.
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
        self.replicas: Replicas | None = None      # Where there are other brokers.
        self.repeats: Repeats | None = None        # Answers that are given again, where there are.
        self.name_nodes: Callable[[Image], None] | None = None     # Where they are reached.
        self.membership: Membership | None = None  # Likewise.

    def add_coordinator(self, coordinator) -> None:
        """One that was made later. It has taken the topics as they are in force."""
        self._coordinators.append(coordinator)

    async def run(self) -> None:
        """Puts records into force as they are committed, until cancelled. Keeps (1)."""
        tail = self._metadata.tail
        while True:
            await tail.grown()
            while (delta := tail.take()) is not None:
                await self._apply(delta)
                tail.applied(delta.after.offset)

    async def stop(self, task: asyncio.Task) -> None:
        """Ends run(), which is `task`: what is not in force yet the next start reads."""
        tasks = [task] if self._registering is None else [task, self._registering]
        for running in tasks:
            running.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def registered(self) -> None:
        """Returns once this broker's listeners, as they are now, are in force in the image."""
        if self._registering is not None:
            # Not its result: a registration that failed does not concern later requests.
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
                # Keeps (2).
                supervisor.report("metadata publisher", "an effect of metadata failed",
                                  effect=effect.__name__, offset=delta.after.offset)

    async def _apply_broker_settings(self, delta: Delta) -> None:
        if not any(kind == RESOURCE_BROKER and name in ("", str(self._node_id))
                   for kind, name in delta.configs):
            return
        self._metadata.take_broker_configs(delta.after)
        await in_thread(self._logs.reconfigure)
        addresses = await in_thread(self._apply_settings)
        registrar = self.membership or self._metadata
        told = None
        if addresses is not None:
            told = registrar.register_again(addresses)
        elif not self._metadata.cordons_are_told():
            told = registrar.cordon()
        if told is not None:
            # Not awaited: it is a decision, and those may wait for what is applied here.
            self._registering = asyncio.get_running_loop().create_task(
                supervisor.reporting("registration", told))

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
            self._grants.remove(topic.name)      # Keeps (3).
        await in_thread(self._apply_logs, delta.after, gone, made, changed, changes)
        if self.replicas is not None:
            self.replicas.start(delta.after, changes)
        for topic in (*gone, *made, *changed):
            self._grants.remove(topic.name)
        for coordinator in self._coordinators:
            _each(gone, lambda topic, to=coordinator: to.topic_deleted(topic.name))
            _each((*made, *changed), coordinator.topic_changed)

    def _apply_logs(self, image, gone, made, changed, changes) -> None:
        """Closes, opens and changes the parts of partition logs. Blocks."""
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
        """Answers that are given again were right under other rights, settings or features."""
        if self.repeats is not None and (
                delta.security or delta.after.features is not delta.before.features
                or any(kind != RESOURCE_TOPIC for kind, _ in delta.configs)):
            self.repeats.void()

    async def _save_image(self, delta: Delta) -> None:
        if self._metadata.is_image_due:
            await in_thread(self._metadata.save_image)


def topic_changes(delta: Delta) -> tuple:
    """(topics that went, topics that came, topics with other partitions), as lists of Topic."""
    before, after = delta.before.topics_by_id, delta.after.topics_by_id
    gone = [before[id_] for id_ in delta.topic_ids if id_ in before and id_ not in after]
    made = [after[id_] for id_ in delta.topic_ids if id_ in after and id_ not in before]
    changed = [after[id_] for id_ in delta.topic_ids if id_ in after and id_ in before]
    return gone, made, changed


def _each(topics, effect) -> None:
    """One effect on each of the topics. Keeps (2)."""
    for topic in topics:
        try:
            effect(topic)
        except Exception:
            supervisor.report(
                "metadata publisher", "an effect of metadata failed", topic=topic.name)
