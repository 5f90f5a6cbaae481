"""Classic groups on the wire: FindCoordinator (10), JoinGroup (11) to SyncGroup (14),
DescribeGroups (15), ListGroups (16), DeleteGroups (42).

Owns: nothing.
Invariants: a handler returns the response, or a DeferredResponse that always completes.
Source: KIP-699 (batched FindCoordinator), KIP-222, KIP-345, KIP-518, KIP-1043.
"""

from __future__ import annotations

import asyncio
import itertools

from pylog.api.groups.describe_parts import PART_ROWS, in_parts
from pylog.coordinator.groups import describe as group_describe
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.share import offsets as share_offsets
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.api.cluster.cluster import Addresses
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.coordinator.transactions.service import TransactionCoordinator
    from pylog.protocol.errors import Error
    from pylog.share.service import Sharing

KEY_GROUP, KEY_TRANSACTION, KEY_SHARE = range(3)
BATCHED_SINCE = 4
SHARE_SINCE = 6
MEMBERS_SINCE = 3
NULL_PROTOCOL_SINCE = 7
PROTOCOL_SINCE = 5  # of SyncGroup, KIP-559
NOWHERE = -1, "", -1


class GroupsApi:
    """Classic groups, on the coordinator `groups`. FindCoordinator also uses `transactions` and
    `sharing`, which has the share group state.
    """

    def __init__(self, groups: GroupCoordinator, transactions: TransactionCoordinator,
                 sharing: Callable[[], Sharing], addresses: Addresses):
        self._groups = groups
        self._transactions = transactions
        self._sharing = sharing
        self._addresses = addresses

    def handlers(self) -> dict[int, Handler]:
        return {
            api.FIND_COORDINATOR: self.find_coordinator,
            api.JOIN_GROUP: self.join_group,
            api.HEARTBEAT: self.heartbeat,
            api.LEAVE_GROUP: self.leave_group,
            api.SYNC_GROUP: self.sync_group,
            api.DESCRIBE_GROUPS: self.describe_groups,
            api.LIST_GROUPS: self.list_groups,
            api.DELETE_GROUPS: self.delete_groups,
        }

    async def find_coordinator(self, context: RequestContext, request: Message) -> Message:
        """Return the broker that coordinates a key or, from version 4, several keys (KIP-699).

        Creates the internal topic on first use. Errors: COORDINATOR_NOT_AVAILABLE if it has no
        leader; INVALID_REQUEST for an unknown key type, or an invalid share partition key.
        """
        version = context.api_version
        coordinators: dict[int, Any] = {
            KEY_GROUP: self._groups, KEY_TRANSACTION: self._transactions}
        if request.key_type == KEY_SHARE and version >= SHARE_SINCE:
            shares = self._sharing().coordinator
            if all(shares.is_key(key) for key in request.coordinator_keys):
                coordinators[KEY_SHARE] = shares
        coordinator = coordinators.get(request.key_type, self._groups)
        error = await coordinator.ensure_topic() if request.key_type in coordinators \
            else ErrorCode.INVALID_REQUEST
        addresses = {id_: (id_, host, port) for id_, host, port, _, fenced
                  in self._addresses.of(context) if not fenced}
        new = messages.FindCoordinatorResponse
        if version < BATCHED_SINCE:
            return new(**_found(coordinator.leader_of, request.key, error, addresses))
        return new(coordinators=[
            new.Coordinator(key=key, **_found(coordinator.leader_of, key, error, addresses))
            for key in request.coordinator_keys])

    def join_group(self, context: RequestContext, request: Message) -> Message | DeferredResponse:
        """Return the member's id, generation and protocol when all members have joined or timed
        out.

        Errors: INVALID_GROUP_ID, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, MEMBER_ID_REQUIRED
        (KIP-394), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (KIP-345), INCONSISTENT_GROUP_PROTOCOL,
        INVALID_SESSION_TIMEOUT, GROUP_MAX_SIZE_REACHED.
        """
        def refusal(error):
            return messages.JoinGroupResponse(
                error_code=error, member_id=request.member_id,
                protocol_name=None if context.api_version >= NULL_PROTOCOL_SINCE else "")

        if not request.group_id:
            return refusal(ErrorCode.INVALID_GROUP_ID)
        pending = DeferredResponse(refusal,
                                   None if context.api_version >= NULL_PROTOCOL_SINCE else _named)
        return self._groups.run(
            request.group_id, pending, GroupShard.join, request, context.api_version,
            context.client_id or "", f"/{context.peer_host}", pending)

    def sync_group(self, context: RequestContext, request: Message) -> Message | DeferredResponse:
        """Return the member's assignment when the leader has sent it and it is written.

        Errors: INCONSISTENT_GROUP_PROTOCOL also for a null protocol from version 5 on (KIP-559);
        ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS.
        """
        def refusal(error):
            return messages.SyncGroupResponse(error_code=error)

        if context.api_version >= PROTOCOL_SINCE and None in (request.protocol_type,
                                                              request.protocol_name):
            return refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not request.group_id:
            return refusal(ErrorCode.INVALID_GROUP_ID)
        pending = DeferredResponse(refusal)
        return self._groups.run(request.group_id, pending, GroupShard.sync, request, pending)

    def heartbeat(self, context: RequestContext, request: Message) -> Message:
        """Extend a member's session by its session.timeout.ms.

        Returns NONE also while the coordinator loads. Errors: REBALANCE_IN_PROGRESS (the member
        must rejoin), ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, NOT_COORDINATOR.
        """
        if not request.group_id:
            return messages.HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        found, error = self._groups.query(request.group_id, GroupShard.heartbeat, request)
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            error = ErrorCode.NONE  # A coordinator restart must not end the member's session.
        return messages.HeartbeatResponse(error_code=error if found is None else found)

    def leave_group(self, context: RequestContext, request: Message) -> Message | DeferredResponse:
        """Remove a member, or from version 3 several, with an error code each (KIP-345).

        Errors: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID per member; NOT_COORDINATOR and
        COORDINATOR_LOAD_IN_PROGRESS for all.
        """
        new = messages.LeaveGroupResponse
        if not request.group_id:
            return new(error_code=ErrorCode.INVALID_GROUP_ID)
        old = context.api_version < MEMBERS_SINCE
        members: list[tuple[str, str | None, str | None]] = \
            [(request.member_id, None, None)] if old else [
                (row.member_id, row.group_instance_id, row.reason) for row in request.members]

        def leave(store: GroupShard) -> Message:
            result = store.leave(request.group_id, members)
            if isinstance(result, int):
                return new(error_code=result)
            if old:
                return new(error_code=result[0])
            return new(members=[
                new.MemberResponse(
                    member_id=member_id, group_instance_id=instance_id, error_code=code)
                for (member_id, instance_id, _), code in zip(members, result, strict=True)])

        return self._groups.run(
            request.group_id, DeferredResponse(lambda code: new(error_code=code)), leave)

    def describe_groups(
            self, context: RequestContext, request: Message) -> Iterator[Message | None]:
        """Yield the groups with state, protocol and members, in parts.

        A missing group is Dead; GROUP_ID_NOT_FOUND from version 6 (KIP-1043). Errors:
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS per group.
        """
        version = context.api_version

        def groups() -> Iterator[Message]:
            for group_id in request.groups:
                described, error = self._groups.query(
                    group_id, group_describe.described, group_id, version, PART_ROWS)
                yield from described or [group_describe.refused(group_id, error, version)]

        return in_parts(messages.DescribeGroupsResponse, groups(),
                        request.include_authorized_operations)

    def list_groups(self, context: RequestContext, request: Message) -> Iterator[Message | None]:
        """Yield this coordinator's groups of the requested states (KIP-518) and types.

        Errors: COORDINATOR_LOAD_IN_PROGRESS for all while any partition loads.
        """
        ready, loading = self._groups.shards()
        new = messages.ListGroupsResponse
        if loading:
            yield new(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return
        states = {name.lower() for name in request.states_filter}
        types = {name.lower() for name in request.types_filter}
        found = (row for shard in ready
                 for row in group_describe.listed(shard.state_machine, states, types))
        rows = list(itertools.islice(found, PART_ROWS))
        while len(rows) == PART_ROWS:
            yield new(groups=rows)
            rows = list(itertools.islice(found, PART_ROWS))
        yield new(groups=rows)

    def delete_groups(
            self, context: RequestContext, request: Message) -> Coroutine[Any, Any, Message]:
        """Delete groups without members, and the state of share groups' partitions; respond when
        their tombstones are written (KIP-229).

        Errors: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS
        per group.
        """
        new = messages.DeleteGroupsResponse
        rows = []
        for group_id in dict.fromkeys(request.groups_names):
            is_share, _ = self._groups.query(group_id, share_offsets.exists, group_id)
            gone: Any = asyncio.ensure_future(self._sharing().states.delete_group(group_id)) \
                if is_share else self._groups.run_in_slices(
                    group_id, DeferredResponse(lambda code: code), group_describe.delete, group_id)
            rows.append((gone, new.DeletableGroupResult(group_id=group_id)))
        return _deleted(rows)


def _found(leader_of: Callable[[str], int], key: str, error: Error, addresses) -> dict:
    """Return the row of one key. places: broker id -> its id and address."""
    address = addresses.get(leader_of(key), NOWHERE) if error == ErrorCode.NONE else NOWHERE
    if address is NOWHERE and error == ErrorCode.NONE:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    node_id, host, port = address
    return {"error_code": error, "node_id": node_id, "host": host, "port": port,
            "error_message": "NONE" if error == ErrorCode.NONE else error.message}


def _named(response):
    """Convert a response for versions in which the protocol cannot be null."""
    response.protocol_name = response.protocol_name or ""
    return response


async def _deleted(rows):
    """Return the response when every group's tombstones are durable."""
    for pending, row in rows:
        row.error_code = await pending
    return messages.DeleteGroupsResponse(results=[row for _, row in rows])
