"""Admin calls for share groups: members and offsets.

Owns: nothing.
Invariants: requests for a group go to its coordinator.
Source: Kafka's Admin client (KIP-932, KIP-1226 for the lag).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pylog.client.admin.types import (
    ShareGroupDescription, ShareMemberDescription, ShareOffset,
)
from pylog.client.consumer.offset_requests import ask_coordinator, refused
from pylog.client.errors import error, raise_among, raise_for
from pylog.client.network.cluster import GROUP
from pylog.client.types import TopicPartition
from pylog.protocol import messages


class ShareAdministration:
    """Methods of Admin, which provides `cluster` and `_run_concurrently`."""

    cluster: Any
    _run_concurrently: Any

    async def describe_share_groups(self, groups: Iterable[str], timeout: float | None = None
                                    ) -> dict[str, ShareGroupDescription]:
        """Describe share groups. Raises GroupIdNotFoundError, also for other kinds of groups."""
        async def described(group: str) -> ShareGroupDescription:
            request = messages.ShareGroupDescribeRequest(group_ids=[group])
            response = await ask_coordinator(self.cluster, group, lambda _: (request, None))
            row = response.groups[0]
            if row.error_code:
                raise refused(self.cluster, group, row.error_code)
            members = [ShareMemberDescription(
                member.member_id, member.client_id, member.client_host, [
                    TopicPartition(topic.topic_name, number)
                    for topic in member.assignment.topic_partitions
                    for number in topic.partitions]) for member in row.members]
            return ShareGroupDescription(
                group, row.group_state, row.assignor_name,
                await self.cluster.coordinator(GROUP, group), members)

        return await self._run_concurrently(groups, timeout, described)

    async def list_share_group_offsets(self, group: str, timeout: float | None = None
                                       ) -> dict[TopicPartition, ShareOffset]:
        """Return the group's offset in each of its partitions. Raises GroupIdNotFoundError."""
        new = messages.DescribeShareGroupOffsetsRequest
        request = new(groups=[new.DescribeShareGroupOffsetsRequestGroup(
            group_id=group, topics=None)])

        async def attempt() -> dict[TopicPartition, ShareOffset]:
            response = await ask_coordinator(self.cluster, group, lambda _: (request, None))
            row = response.groups[0]
            if row.error_code:
                raise refused(self.cluster, group, row.error_code)
            found = {}
            for topic in row.topics:
                for cell in topic.partitions:
                    raise_for(cell.error_code, context=f"{topic.topic_name}-{cell.partition_index}")
                    found[TopicPartition(topic.topic_name, cell.partition_index)] = ShareOffset(
                        cell.start_offset, cell.leader_epoch, getattr(cell, "lag", -1))
            return found

        found: dict[TopicPartition, ShareOffset] = await self.cluster.retry(attempt, timeout)
        return found

    async def alter_share_group_offsets(
            self, group: str, offsets: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> None:
        """Set the start offsets of a group without members."""
        new = messages.AlterShareGroupOffsetsRequest
        topics: dict[str, Any] = {}
        for (name, number), offset in offsets.items():
            topics.setdefault(name, new.AlterShareGroupOffsetsRequestTopic(
                topic_name=name)).partitions.append(new.AlterShareGroupOffsetsRequestPartition(
                    partition_index=number, start_offset=offset))
        await self._changed(group, new(group_id=group, topics=list(topics.values())), timeout)

    async def delete_share_group_offsets(self, group: str, topics: Iterable[str],
                                         timeout: float | None = None) -> None:
        """Delete the offsets of a group without members in these topics."""
        new = messages.DeleteShareGroupOffsetsRequest
        await self._changed(group, new(group_id=group, topics=[
            new.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]), timeout)

    async def _changed(self, group: str, request: Any, timeout: float | None) -> None:
        async def attempt() -> None:
            response = await ask_coordinator(self.cluster, group, lambda _: (request, None))
            if response.error_code:
                raise refused(self.cluster, group, response.error_code)
            raise_among({
                (topic.topic_name, getattr(row, "partition_index", None)):
                    error(row.error_code, row.error_message, context=topic.topic_name)
                    if row.error_code else None
                for topic in response.responses for row in getattr(topic, "partitions", [topic])})

        await self.cluster.retry(attempt, timeout)
