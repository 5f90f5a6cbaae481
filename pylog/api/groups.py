"""Classic groups on the wire: FindCoordinator (10), JoinGroup (11) to SyncGroup (14),
DescribeGroups (15), ListGroups (16), DeleteGroups (42).

Owns: nothing.
Called by: dispatch through api.HANDLERS.
Invariants: (1) a handler returns the answer, or a Pending that is always answered.
Source: KIP-699 (batched FindCoordinator), KIP-222, KIP-345, KIP-518, KIP-1043.
"""

import itertools

from pylog.api import cluster
from pylog.coordinator import inventory
from pylog.coordinator.service import Pending
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

KEY_GROUP, KEY_TRANSACTION, KEY_SHARE = range(3)
BATCHED_SINCE = 4
SHARE_SINCE = 6
MEMBERS_SINCE = 3
NULL_PROTOCOL_SINCE = 7
PROTOCOL_SINCE = 5    # SyncGroup's, KIP-559.
# What a principal without restrictions may do with a group (KIP-430).
GROUP_OPERATIONS = sum(1 << bit for bit in (3, 6, 8, 10, 11))
NOWHERE = -1, "", -1
PART_ROWS = 500
NO_TRANSACTIONS = "transactions are not served here"


async def find_coordinator(broker, context, request):
    version = context.api_version
    error = ErrorCode.NONE
    if request.key_type == KEY_GROUP:
        error = await broker.groups.ensure_topic()
    elif request.key_type == KEY_TRANSACTION:
        # Not served here. What says so would be tried again for a minute, by librdkafka for ever:
        # this one ends every client at once, and most show the text.
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif request.key_type == KEY_SHARE and version >= SHARE_SINCE:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE   # Not served here.
    else:
        error = ErrorCode.INVALID_REQUEST
    here = next(
        ((id_, host, port) for id_, host, port, _, _ in cluster.addresses(broker, context)
         if id_ == broker.node_id), NOWHERE)
    new = messages.FindCoordinatorResponse
    text = NO_TRANSACTIONS if request.key_type == KEY_TRANSACTION else error.message
    if version < BATCHED_SINCE:
        return new(**_found(broker, request.key, error, text, here))
    return new(coordinators=[
        new.Coordinator(key=key, **_found(broker, key, error, text, here))
        for key in request.coordinator_keys])


def _found(broker, key: str, error, text: str, here) -> dict:
    """What is told of one key; here: this broker's id and address."""
    if error == ErrorCode.NONE and not broker.groups.has_leader(key):
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        text = error.message
    node_id, host, port = here if error == ErrorCode.NONE else NOWHERE
    return {"error_code": error, "node_id": node_id, "host": host, "port": port,
            "error_message": "NONE" if error == ErrorCode.NONE else text}


def shard_of_named(broker, group_id: str):
    """As shard_of(), for requests that Kafka refuses without a group id, whatever is loaded."""
    if not group_id:
        return None, ErrorCode.INVALID_GROUP_ID
    return broker.groups.shard_of(group_id)


def join_group(broker, context, request):
    def refusal(error):
        return messages.JoinGroupResponse(
            error_code=error, member_id=request.member_id,
            protocol_name=None if context.api_version >= NULL_PROTOCOL_SINCE else "")

    shard, error = shard_of_named(broker, request.group_id)
    if shard is None:
        return refusal(error)
    pending = Pending(refusal, None if context.api_version >= NULL_PROTOCOL_SINCE else _named)
    shard.groups.join(request, context.api_version, context.client_id or "",
                      f"/{context.peer_host}", pending)
    broker.groups.settle(shard)
    return pending


def _named(answer):
    """An answer for versions that cannot say that there is no protocol."""
    answer.protocol_name = answer.protocol_name or ""
    return answer


def sync_group(broker, context, request):
    def refusal(error):
        return messages.SyncGroupResponse(error_code=error)

    if context.api_version >= PROTOCOL_SINCE and None in (request.protocol_type,
                                                          request.protocol_name):
        return refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    shard, error = shard_of_named(broker, request.group_id)
    if shard is None:
        return refusal(error)
    pending = Pending(refusal)
    shard.groups.sync(request, pending)
    broker.groups.settle(shard)
    return pending


def heartbeat(broker, context, request):
    shard, error = shard_of_named(broker, request.group_id)
    if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        error = ErrorCode.NONE   # A member must not take a restart for the end of its session.
    if shard is not None:
        error = shard.groups.heartbeat(request)
    return messages.HeartbeatResponse(error_code=error)


def leave_group(broker, context, request):
    new = messages.LeaveGroupResponse
    old = context.api_version < MEMBERS_SINCE
    members = [(request.member_id, None)] if old else [
        (row.member_id, row.group_instance_id) for row in request.members]
    shard, error = shard_of_named(broker, request.group_id)
    if shard is None:
        return new(error_code=error)
    result = shard.groups.leave(request.group_id, members)
    if isinstance(result, int):
        message = new(error_code=result)
    elif old:
        message = new(error_code=result[0])
    else:
        message = new(members=[
            new.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=code)
            for (member_id, instance_id), code in zip(members, result, strict=True)])
    return broker.groups.settled(shard, Pending(lambda code: new(error_code=code)), message)


def describe_groups(broker, context, request):
    """Yields the answer, some groups or members at a time."""
    version = context.api_version
    new = messages.DescribeGroupsResponse
    rows, room = [], PART_ROWS
    for group_id in request.groups:
        shard, error = broker.groups.shard_of(group_id)
        described = [inventory.refused(group_id, error, version)] if shard is None \
            else inventory.described(shard.groups, group_id, version, PART_ROWS)
        for row in described:
            if request.include_authorized_operations and row.error_code == ErrorCode.NONE:
                row.authorized_operations = GROUP_OPERATIONS
            rows.append(row)
            room -= 1 + len(row.members)
            if room <= 0:
                yield new(groups=rows)
                rows, room = [], PART_ROWS
    yield new(groups=rows)


def list_groups(broker, context, request):
    ready, loading = broker.groups.shards()
    new = messages.ListGroupsResponse
    if loading:
        yield new(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return
    states = {name.lower() for name in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    found = (row for shard in ready for row in inventory.listed(shard.groups, states, types))
    rows = list(itertools.islice(found, PART_ROWS))
    while len(rows) == PART_ROWS:
        yield new(groups=rows)
        rows = list(itertools.islice(found, PART_ROWS))
    yield new(groups=rows)


def delete_groups(broker, context, request):
    new = messages.DeleteGroupsResponse
    rows = []
    for group_id in dict.fromkeys(request.groups_names):
        shard, error = broker.groups.shard_of(group_id)
        pending = Pending(lambda code: code)
        if shard is None:
            pending.refuse(error)
        else:
            error = inventory.delete(shard.groups, group_id)
            broker.groups.settled(shard, pending, error)
        rows.append((pending, new.DeletableGroupResult(group_id=group_id)))
    return _deleted(rows)


async def _deleted(rows):
    """The answer, once every group's tombstones are durable."""
    for pending, row in rows:
        row.error_code = await pending
    return messages.DeleteGroupsResponse(results=[row for _, row in rows])


HANDLERS = {
    api.FIND_COORDINATOR: find_coordinator, api.JOIN_GROUP: join_group, api.HEARTBEAT: heartbeat,
    api.LEAVE_GROUP: leave_group, api.SYNC_GROUP: sync_group,
    api.DESCRIBE_GROUPS: describe_groups, api.LIST_GROUPS: list_groups,
    api.DELETE_GROUPS: delete_groups,
}
