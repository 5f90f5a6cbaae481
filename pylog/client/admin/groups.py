"""Admin calls for groups: list, describe, delete, and their offsets.

Owns: nothing.
Invariants: requests for a group go to its coordinator; groups of both protocols have the same
  result types.
Source: Kafka's Admin client; KIP-848 for ConsumerGroupDescribe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from pylog.client.admin.types import GroupDescription, GroupListing, MemberDescription
from pylog.client.consumer import offset_requests
from pylog.client.consumer.classic_membership import unpack
from pylog.client.consumer.offset_requests import (
    Identity, ask_coordinator, ask_coordinators, refused,
)
from pylog.client.errors import UnsupportedByBrokerError, error, raise_among, raise_for
from pylog.client.types import OffsetAndMetadata, TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode, ProtocolError

_LIST_STATES_VERSION = 4
_LIST_TYPES_VERSION = 5
_MEMBERS_VERSION = 3


class Groups:
    """Methods of Admin, which provides `cluster`, `_retry_items`, `_run_concurrently` and
    `_run_on_all_brokers`.
    """

    cluster: Any
    _retry_items: Any
    _run_concurrently: Any
    _run_on_all_brokers: Any

    async def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = (),
                          timeout: float | None = None) -> list[GroupListing]:
        """Return the groups of every broker, optionally only in these states or of these types."""
        wanted = list(states), list(types)
        found = await self._run_on_all_brokers(timeout, lambda node: self._listed(node, *wanted))
        # A group whose coordinator moved may be in the lists of two brokers.
        return list({listing.group_id: listing
                     for _, listings in sorted(found.items()) for listing in listings}.values())

    async def list_consumer_groups(self, states: Iterable[str] = (),
                                   timeout: float | None = None) -> list[GroupListing]:
        """Return consumer groups of either protocol, without share groups and Connect."""
        found = await self.list_groups(states, timeout=timeout)
        return [row for row in found if row.protocol in ("consumer", "")
                and row.type.lower() in ("", "classic", "consumer")]

    async def _listed(self, node: int, states: list[str], types: list[str]) -> list[GroupListing]:
        connection = await self.cluster.connection(node)
        version = connection.version(messages.ListGroupsRequest)
        if states and version < _LIST_STATES_VERSION:
            raise UnsupportedByBrokerError(f"broker {node} cannot list groups by state")
        request = messages.ListGroupsRequest(states_filter=states)
        if version >= _LIST_TYPES_VERSION:
            request.types_filter = types
        elif types and "classic" not in map(str.lower, types):  # Its only type.
            raise UnsupportedByBrokerError(f"broker {node} cannot list groups by type")
        response = await connection.send(request, version=version)
        raise_for(response.error_code)
        return [GroupListing(row.group_id, row.protocol_type, row.group_state, row.group_type)
                for row in response.groups]

    async def describe_consumer_groups(self, groups: Iterable[str], timeout: float | None = None
                              ) -> dict[str, GroupDescription]:
        """Describe consumer groups of either protocol, with few requests to each coordinator.
        Raises GroupIdNotFoundError.
        """
        found: dict[str, GroupDescription] = await self._retry_items(
            dict.fromkeys(groups), timeout,
            lambda left: ask_coordinators(self.cluster, left, self._describe))
        return found

    async def _describe(self, node: int, connection: Any, groups: list[str],
                        found: dict[str, Any]) -> None:
        classic = groups  # Unless the broker supports the new protocol.
        with suppress(UnsupportedByBrokerError):
            response = await connection.send(
                messages.ConsumerGroupDescribeRequest(group_ids=groups))
            classic = []
            for row in response.groups:
                if not row.error_code:
                    found[row.group_id] = _of_new_protocol(row, node)
                elif row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND,
                                        ErrorCode.UNSUPPORTED_VERSION):
                    classic.append(row.group_id)
                else:
                    found[row.group_id] = refused(self.cluster, row.group_id, row.error_code)
        if not classic:
            return
        response = await connection.send(messages.DescribeGroupsRequest(groups=classic))
        for row in response.groups:
            if row.error_code:
                found[row.group_id] = refused(self.cluster, row.group_id, row.error_code)
            elif row.group_state == "Dead":
                found[row.group_id] = error(ErrorCode.GROUP_ID_NOT_FOUND, context=row.group_id)
            else:
                found[row.group_id] = _of_classic_protocol(row, node)

    async def delete_consumer_groups(self, groups: Iterable[str], timeout: float | None = None
                                     ) -> None:
        """Delete groups without members. Raises NonEmptyGroupError, GroupIdNotFoundError."""
        async def delete(group: str) -> None:
            request = messages.DeleteGroupsRequest(groups_names=[group])
            response = await ask_coordinator(self.cluster, group, lambda _: (request, None))
            row = response.results[0]
            if row.error_code:
                raise refused(self.cluster, group, row.error_code)

        await self._run_concurrently(groups, timeout, delete)

    async def remove_members_from_consumer_group(
            self, group: str, instance_ids: Iterable[str] = (), member_ids: Iterable[str] = (),
            timeout: float | None = None) -> None:
        """Remove static members (by instance id) or any members (by member id) from a classic
        group.
        """
        request = messages.LeaveGroupRequest
        members = [request.MemberIdentity(group_instance_id=id_) for id_ in instance_ids]
        members += [request.MemberIdentity(member_id=id_) for id_ in member_ids]

        def build(connection: Any) -> tuple[Any, int]:
            version = connection.version(request)
            if version < _MEMBERS_VERSION:
                raise UnsupportedByBrokerError("the broker cannot remove members on request")
            return request(group_id=group, members=members), version

        async def attempt() -> None:
            response = await ask_coordinator(self.cluster, group, build)
            if response.error_code:
                raise refused(self.cluster, group, response.error_code)
            raise_among({row.group_instance_id or row.member_id:
                         refused(self.cluster, group, row.error_code) if row.error_code else None
                         for row in response.members})

        await self.cluster.retry(attempt, timeout)

    async def list_consumer_group_offsets(
            self, group: str, partitions: Iterable[TopicPartition] | None = None,
            require_stable: bool = False, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets, of all partitions or (if committed) of these."""
        wanted = None if partitions is None else [TopicPartition.of(tp) for tp in partitions]
        found: dict[TopicPartition, OffsetAndMetadata] = await self.cluster.retry(
            lambda: offset_requests.committed(
                self.cluster, Identity(group), wanted, require_stable), timeout)
        return found

    async def list_offsets_of_consumer_groups(
            self, groups: Mapping[str, Iterable[TopicPartition] | None],
            require_stable: bool = False, timeout: float | None = None
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Return the committed offsets of many groups, with few requests to each coordinator.

        groups: {group: partitions, or None for all that have an offset}.
        """
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = await self._retry_items(
            {group: None if parts is None else [TopicPartition.of(tp) for tp in parts]
             for group, parts in groups.items()}, timeout,
            lambda left: offset_requests.committed_by_groups(self.cluster, left, require_stable))
        return found

    async def alter_consumer_group_offsets(
            self, group: str, offsets: Mapping[TopicPartition, Any], timeout: float | None = None
    ) -> None:
        """Commit for a group without members: int or OffsetAndMetadata, the next to read."""
        given = {TopicPartition.of(tp): OffsetAndMetadata.of(value)
                 for tp, value in offsets.items()}
        await self.cluster.retry(
            lambda: offset_requests.commit(self.cluster, Identity(group), given), timeout)

    async def delete_consumer_group_offsets(
            self, group: str, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> None:
        """Delete committed offsets. Raises GroupSubscribedToTopicError if a member is subscribed.
        """
        request = messages.OffsetDeleteRequest
        topics: dict[str, Any] = {}
        for topic, number in partitions:
            row = topics.setdefault(topic, request.OffsetDeleteRequestTopic(name=topic))
            row.partitions.append(request.OffsetDeleteRequestPartition(partition_index=number))

        async def attempt() -> None:
            response = await ask_coordinator(self.cluster, group, lambda _: (
                request(group_id=group, topics=list(topics.values())), None))
            if response.error_code:
                raise refused(self.cluster, group, response.error_code)
            raise_among({
                TopicPartition(topic.name, row.partition_index):
                    error(row.error_code, context=f"{topic.name}-{row.partition_index}")
                    if row.error_code else None
                for topic in response.topics for row in topic.partitions})

        await self.cluster.retry(attempt, timeout)

    delete_share_groups = delete_consumer_groups

    # Old names, from before Kafka's names were adopted.
    describe_groups = describe_consumer_groups
    delete_groups = delete_consumer_groups
    remove_members = remove_members_from_consumer_group
    list_group_offsets = list_consumer_group_offsets
    alter_group_offsets = alter_consumer_group_offsets
    delete_group_offsets = delete_consumer_group_offsets


def _of_new_protocol(row: Any, node: int) -> GroupDescription:
    members = [MemberDescription(
        member.member_id, member.instance_id, member.client_id, member.client_host,
        [TopicPartition(topic.topic_name, number)
         for topic in member.assignment.topic_partitions for number in topic.partitions])
        for member in row.members]
    return GroupDescription(
        row.group_id, row.group_state, "consumer", row.assignor_name, node, members)


def _of_classic_protocol(row: Any, node: int) -> GroupDescription:
    members = [MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host,
        _assigned(member.member_assignment)) for member in row.members]
    return GroupDescription(
        row.group_id, row.group_state, "classic", row.protocol_data, node, members)


def _assigned(data: bytes) -> list[TopicPartition]:
    try:
        return unpack(data)
    except ProtocolError:
        return []  # A group with another protocol: its assignments cannot be decoded.
