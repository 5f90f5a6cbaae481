"""Share groups of one broker: the share coordinator and what is built on it.

Owns: the parts that it composes.
Invariants: (1) what writes stops before what it writes to.
Source: KIP-932.
"""

from pylog.coordinator.groups.service import GroupCoordinator
from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.runtime.internal_topic import Node
from pylog.coordinator.share.service import ShareCoordinator
from pylog.metadata.image.image import Topic
from pylog.share.end_offsets import Ends
from pylog.share.group_config import GroupSettings
from pylog.share.group_state_client import GroupStates
from pylog.share.manager import SharePartitions
from pylog.share.metrics import Figures, Sample
from pylog.share.persister import Persister


class Sharing:
    """node: see internal_topic.Node."""

    def __init__(self, node: Node, groups: GroupCoordinator, brokers: Brokers):
        self.settings = GroupSettings(node.settings, lambda: node.image)
        self.coordinator = ShareCoordinator(node)
        self.persister = Persister(self.coordinator, brokers, node.node_id)
        self.ends = Ends(node, brokers)
        self.states = GroupStates(node, groups, self.persister)
        self._node = node
        self._figures = Figures()
        self.partitions = SharePartitions(
            node, brokers, self.persister, self.settings, self._figures)

    def start(self) -> None:
        """Begins to load what there is; returns at once."""
        self.coordinator.start()

    async def stop(self) -> None:
        # Keeps (1).
        await self.partitions.stop()
        await self.states.stop()
        await self.coordinator.stop()

    def samples(self) -> list[tuple[str, list[Sample]]]:
        """Metrics; on any thread."""
        topics = self._node.image.topics_by_id
        return self._figures.samples(self.partitions, lambda id_: (
            topics[id_].name if id_ in topics else id_.hex()))

    def topic_changed(self, topic: Topic) -> None:
        """The topic, as it now is, has other partitions or leaders, or is new."""
        self.coordinator.topic_changed(topic)
        self.partitions.topic_changed(topic)

    def topic_deleted(self, name: str) -> None:
        self.coordinator.topic_deleted(name)
        self.partitions.topic_deleted(name)

    def closed(self, connection: int) -> None:
        """A connection that was watched has ended."""
        self.partitions.closed(connection)
