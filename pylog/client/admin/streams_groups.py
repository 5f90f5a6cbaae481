"""Admin calls for Streams groups: topology, members and tasks.

Owns: nothing.
Invariants: requests for a group go to its coordinator.
Source: Kafka's Admin client (KIP-1071). Offsets and deletion use the calls for other groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pylog.client.admin.types import (
    StreamsAssignment, StreamsGroupDescription, StreamsMemberDescription, StreamsSubtopology,
    StreamsTask,
)
from pylog.client.consumer.offset_requests import ask_coordinator, refused
from pylog.client.network.cluster import GROUP
from pylog.protocol import messages


class StreamsAdministration:
    """Methods of Admin, which provides `cluster` and `_run_concurrently`."""

    cluster: Any
    _run_concurrently: Any

    async def describe_streams_groups(self, groups: Iterable[str], timeout: float | None = None
                                      ) -> dict[str, StreamsGroupDescription]:
        """Describe Streams groups. Raises GroupIdNotFoundError, also for other kinds of groups."""
        async def described(group: str) -> StreamsGroupDescription:
            request = messages.StreamsGroupDescribeRequest(group_ids=[group])
            response = await ask_coordinator(self.cluster, group, lambda _: (request, None))
            row = response.groups[0]
            if row.error_code:
                raise refused(self.cluster, group, row.error_code)
            topology = row.topology
            return StreamsGroupDescription(
                group, row.group_state, row.group_epoch, row.assignment_epoch,
                topology.epoch if topology else None, await self.cluster.coordinator(GROUP, group),
                [_subtopology(part) for part in (topology and topology.subtopologies) or ()],
                [_member(member) for member in row.members])

        return await self._run_concurrently(groups, timeout, described)


def _subtopology(row: Any) -> StreamsSubtopology:
    return StreamsSubtopology(
        row.subtopology_id, list(row.source_topics),
        [topic.name for topic in row.repartition_source_topics], list(row.repartition_sink_topics),
        [topic.name for topic in row.state_changelog_topics])


def _member(row: Any) -> StreamsMemberDescription:
    at = row.user_endpoint
    return StreamsMemberDescription(
        row.member_id, row.instance_id, row.client_id, row.client_host, row.rack_id, row.process_id,
        f"{at.host}:{at.port}" if at else None, row.member_epoch, row.topology_epoch,
        bool(row.is_classic), _assignment(row.assignment), _assignment(row.target_assignment))


def _assignment(row: Any) -> StreamsAssignment:
    return StreamsAssignment(*([
        StreamsTask(tasks.subtopology_id, number) for tasks in kind for number in tasks.partitions]
        for kind in (row.active_tasks, row.standby_tasks, row.warmup_tasks)))
