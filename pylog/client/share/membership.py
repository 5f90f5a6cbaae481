"""A share consumer's membership of its group: the broker assigns, and nothing is given up first.

Owns: member id and epoch; the heartbeat task; the assignment that the broker wants.
Invariants: those of client.reconciliation; its heartbeats have a request of their own.
Source: KIP-932.
"""

from __future__ import annotations

from pylog.client.consumer.consumer_membership import JOINING, LEAVING, ConsumerMembership
from pylog.protocol import messages


class ShareMembership(ConsumerMembership):
    """ShareGroupHeartbeat, and nothing else."""

    async def _beat_once(self) -> None:
        topics = self.subscription.topics
        request = messages.ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.generation)
        if self.in_full:
            request.rack_id = self.settings["client.rack"] or None
        if self.in_full or topics != self.told_topics:
            request.subscribed_topic_names = sorted(topics)
        await self._beat_with(request, topics)

    async def leave(self, reason: str = "") -> None:
        if self.generation <= JOINING:
            return
        request = messages.ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=LEAVING)
        await self._leave_with(request)
