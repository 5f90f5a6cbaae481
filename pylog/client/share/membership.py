"""Membership of a share group: the broker assigns, and members need not revoke partitions first.

Owns: member id and epoch; the heartbeat task; the broker's target assignment.
Invariants: those of consumer.consumer_membership. Heartbeats use a separate request type.
Source: KIP-932.
"""

from __future__ import annotations

from pylog.client.consumer.consumer_membership import LEAVING, ConsumerMembership
from pylog.protocol import messages


class ShareMembership(ConsumerMembership):
    """Membership that uses only ShareGroupHeartbeat."""

    async def _beat_once(self) -> None:
        topics = self.subscription.topics
        request = messages.ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.generation)
        if self.send_all_fields:
            request.rack_id = self.settings["client.rack"] or None
        if self.send_all_fields or topics != self.sent_topics:
            request.subscribed_topic_names = sorted(topics)
        await self._beat_with(request, topics)

    async def leave(self, reason: str = "") -> None:
        if not self.is_known:
            return
        request = messages.ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=LEAVING)
        await self._leave_with(request)
