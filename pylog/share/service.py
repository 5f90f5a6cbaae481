"""All share group services of a broker: the share coordinator and its users.

Owns: the components.
Invariants: components stop before those that they write to.
Source: KIP-932.
"""

from pylog.coordinator.groups.service import GroupCoordinator
from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.runtime.internal_topic import Node
from pylog.coordinator.share.service import ShareCoordinator
from pylog.metadata.image.image import Topic
from pylog.share.end_offsets import EndOffsets
from pylog.share.group_config import GroupSettings
from pylog.share.group_state_client import GroupStates
from pylog.share.manager import SharePartitions
from pylog.share.metrics import ShareMetrics, Sample
from pylog.share.persister import Persister


class Sharing:
    """Share groups of a broker. node: see internal_topic.Node."""

    def __init__(self, node: Node, groups: GroupCoordinator, brokers: Brokers):
        self.settings = GroupSettings(node.settings, lambda: node.image)
        self.coordinator = ShareCoordinator(node)
        self.persister = Persister(self.coordinator, brokers, node.node_id)
        self.end_offsets = EndOffsets(node, brokers)
        self.states = GroupStates(node, groups, self.persister)
        self._node = node
        self._metrics = ShareMetrics()
        self.partitions = SharePartitions(
            node, brokers, self.persister, self.settings, self._metrics)

    def start(self) -> None:
        """Start loading; return immediately."""
        self.coordinator.start()

    async def stop(self) -> None:
        # Stop the writers first.
        await self.partitions.stop()
        await self.states.stop()
        await self.coordinator.stop()

    def samples(self) -> list[tuple[str, list[Sample]]]:
        """Return the metrics. Callable on any thread."""
        topics = self._node.image.topics_by_id
        partitions = self.partitions
        return self._metrics.samples(
            partitions.every(), partitions.sessions, partitions.letters,
            lambda id_: topics[id_].name if id_ in topics else id_.hex())

    def topic_changed(self, topic: Topic) -> None:
        """Apply a new version of the topic: new, or with other partitions or leaders."""
        self.coordinator.topic_changed(topic)
        self.partitions.topic_changed(topic)

    def topic_deleted(self, name: str) -> None:
        self.coordinator.topic_deleted(name)
        self.partitions.topic_deleted(name)

    def closed(self, connection: int) -> None:
        """End the sessions of a closed connection."""
        self.partitions.closed(connection)
