"""The state machine of one partition of `__consumer_offsets`; dispatches requests by group type.

Owns: nothing beyond state.group_store.
Invariants: a group id belongs to one group of one type; a replay gives the state that the records
  describe, even if it starts in the middle of a type change.
Source: Kafka's GroupMetadataManager.
"""

from collections.abc import Iterator
from typing import Any

from pylog.coordinator.groups import transactional_offsets
from pylog.coordinator.groups.consumer import (
    classic_members, heartbeat as consumer_heartbeat, records as consumer_records,
)
from pylog.coordinator.groups.share import heartbeat as share_heartbeat
from pylog.coordinator.groups.state import classic_records
from pylog.coordinator.groups.classic import protocol as classic_protocol
from pylog.coordinator.groups.state.group_store import GroupStore
from pylog.coordinator.groups.state.modern_group import NO_RECORD
from pylog.coordinator.groups.consumer.group import ConsumerGroup
from pylog.coordinator.groups.state.classic_group import (
    CLASSIC, CONSUMER, NO_TIME, STREAMS, Committed, Group,
)
from pylog.protocol.api_error import Refusal
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

# Key types of Streams group records.
STREAMS_KEYS = frozenset(kind.to_bytes(2, "big") for kind in (17, 19, 20, 21, 22, 23))


class GroupShard(GroupStore):
    """Applies records, requests and timers to the groups of one partition, by group type."""

    # ---- the log --------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order, before loaded(). Raises ProtocolError."""
        decoded = classic_records.decode(key, value)
        if decoded is None:
            if key[:2] in STREAMS_KEYS:
                self._replay_streams(key, value)
            elif not share_heartbeat.replay(self, key, value):
                self._replay_consumer(key, value)
            return
        kind, group_id, *what = decoded
        if kind == "offset":
            self._replay_offset(group_id, *what)
        else:
            self._replay_classic(group_id, *what)

    def _replay_offset(self, group_id: str, partition: tuple[str, int], entry: Any) -> None:
        group = self.find(group_id)
        if entry is not None:
            if group is None:
                group = self.groups[group_id] = Group(group_id, NO_TIME)
            group.offsets[partition] = entry
            transactional_offsets.supersede(group, partition)
        elif group is not None:
            group.offsets.pop(partition, None)
            transactional_offsets.forget(self, group, partition)
        self.changed.add((group_id, partition[0]))

    def _replay_classic(self, group_id: str, made: Group | None) -> None:
        group = self.find(group_id)
        if made is None and group is not None and group.kind != CLASSIC:
            return  # The group has changed its type; later records describe it.
        if made is None and group is not None and (group.offsets or group.unstable):
            made = Group(group_id, NO_TIME)
        self._replace(group_id, group, made)

    def _replace(self, group_id: str, group: Any, made: Any) -> None:
        if made is None:
            self.groups.pop(group_id, None)
            self.gone.add(group_id)
        else:
            if group is not None:
                made.take_offsets(group)
                if group.kind != CLASSIC:
                    self.changed.update((group_id, (member_id,)) for member_id in group.members)
            self.groups[group_id] = made
        self.changed.add((group_id, None))

    def _replay_consumer(self, key: bytes, value: bytes | None) -> None:
        found = consumer_records.replay(key, value, self._consumer_group, self._made)
        if found is not None:
            self._replayed(*found, value is None, CONSUMER)

    def _replay_streams(self, key: bytes, value: bytes | None) -> None:
        # Imported here: few brokers have Streams groups.
        from pylog.coordinator.groups.streams import records as streams_records
        from pylog.coordinator.groups.streams.group import StreamsGroup

        def find(group_id: str) -> StreamsGroup | None:
            group = self.find(group_id)
            return group if isinstance(group, StreamsGroup) else None

        def make(group_id: str) -> StreamsGroup:
            made = find(group_id)
            if made is None:
                made = StreamsGroup(group_id)
                self._replace(group_id, self.find(group_id), made)
            return made

        self._replayed(*streams_records.replay(key, value, find, make), value is None, STREAMS)

    def _replayed(self, group_id: str, member_id: str | None, is_gone: bool, kind: str) -> None:
        """Note that a record of a consumer or Streams group was applied."""
        self.changed.add((group_id, None if member_id is None else (member_id,)))
        group = self.groups.get(group_id)
        if is_gone and group is not None and group.kind == kind and \
                group.epoch == NO_RECORD and not group.members:
            # The group's last record: only offsets may remain.
            left = Group(group_id, NO_TIME) if group.offsets or group.unstable else None
            self._replace(group_id, group, left)

    def _consumer_group(self, group_id: str) -> ConsumerGroup | None:
        group = self.find(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def _made(self, group_id: str) -> ConsumerGroup:
        group = self.find(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        made = ConsumerGroup(group_id)
        self._replace(group_id, group, made)
        return made

    def loaded(self) -> None:
        """Start the sessions of all members after the last record."""
        self.is_loading = False
        for group in list(self.groups.values()):
            if group.kind == CONSUMER:
                consumer_heartbeat.loaded(self, group)
            elif group.kind == STREAMS:
                from pylog.coordinator.groups.streams import heartbeat as streams_heartbeat

                streams_heartbeat.loaded(self, group)
            else:
                classic_protocol.loaded(self, group)
        share_heartbeat.expect_all(self, self.limits.share_session_ms)

    def open_tokens(self) -> Iterator[Any]:
        """Yield the tokens of waiting members; only the classic protocol has them."""
        for group in self.groups.values():
            if group.kind == CLASSIC:
                for member in group.members.values():
                    yield from (token for token in (member.join_token, member.sync_token)
                                if token is not None)

    # ---- classic protocol requests --------------------------------------------------------------

    def join(self, request: Any, version: int, client_id: str, host: str, token: Any) -> None:
        """Handle JoinGroup. Responds immediately or at the end of the join phase."""
        group = self.find(request.group_id)
        is_share = request.group_id in self.shares
        if not is_share and (group is None or group.kind == CLASSIC):
            classic_protocol.join(self, group, request, version, client_id, host, token)
            return
        error = classic_protocol.join_fault(self, request)
        if error == ErrorCode.NONE and (is_share or group.kind == STREAMS and group.members):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error == ErrorCode.NONE and not group.members:
            self._join_empty(group, request, version, client_id, host, token)
            return
        if error == ErrorCode.NONE:
            try:
                self.responses.append((token, classic_members.join(
                    self, group, request, version, client_id, host)))
                return
            except Refusal as refused:
                error = ErrorCode.of(refused.error)
        self.responses.append((token, messages.JoinGroupResponse(
            error_code=error, member_id=request.member_id, protocol_name=None)))

    def _join_empty(self, group: Committed, request: Any, version: int, client_id: str,
                    host: str, token: Any) -> None:
        """Convert an empty consumer or Streams group to a classic group for a new member."""
        if request.member_id:
            self.responses.append((token, messages.JoinGroupResponse(
                error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id,
                protocol_name=None)))
            return
        self.record_gone(group)
        classic = self.groups[group.id] = Group(group.id, self.clock.wall_ms())
        classic.take_offsets(group)
        self.record_group(classic)
        classic_protocol.join(self, classic, request, version, client_id, host, token)

    def sync(self, request: Any, token: Any) -> None:
        """Handle SyncGroup. Followers get their response when the leader has synced."""
        group = self.find(request.group_id)
        if group is None or group.kind == CLASSIC:
            classic_protocol.sync(self, request, token)
            return
        try:
            if group.kind == STREAMS:
                raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
            response = classic_members.sync(self, group, request)
        except Refusal as refused:
            response = messages.SyncGroupResponse(error_code=refused.error)
        self.responses.append((token, response))

    def heartbeat(self, request: Any) -> int:
        """Handle Heartbeat and return its error code."""
        group = self.find(request.group_id)
        if group is None or group.kind == CLASSIC:
            return classic_protocol.heartbeat(self, request)
        if group.kind == STREAMS:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return classic_members.heartbeat(self, group, request)

    def leave(self, group_id: str, members: list[tuple[Any, ...]]) -> Any:
        """Handle LeaveGroup. Return an error code per member, or one for the request.

        members: [(member id, instance id or None, optionally the reason)].
        """
        group = self.find(group_id)
        if group is None or group.kind == CLASSIC:
            return classic_protocol.leave(self, group_id, members)
        if group.kind == STREAMS:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        return classic_members.leave(self, group, members)

    # ---- time -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Run all due timers. Call this at timers.next_ms() or later."""
        now_ms = self.clock.now_ms()
        while (key := self.timers.take_due(now_ms)) is not None:
            if key[0] == share_heartbeat.TIMER:
                share_heartbeat.is_due(self, key[1], key[2])
                continue
            group = self.groups.get(key[1])
            # Ignore timers from before a type change.
            if group is None or group.kind != _kind_of(key[0]):
                continue
            if group.kind == CONSUMER:
                consumer_heartbeat.due(self, group, key)
            elif group.kind == STREAMS:
                from pylog.coordinator.groups.streams import heartbeat as streams_heartbeat

                streams_heartbeat.due(self, group, key)
            else:
                classic_protocol.due(self, group, key)


def _kind_of(timer: str) -> str:
    """Return the group type that uses this timer type."""
    if timer in consumer_heartbeat.TIMERS:
        return CONSUMER
    return STREAMS if timer.startswith(STREAMS) else CLASSIC
