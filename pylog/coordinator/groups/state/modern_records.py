"""The common part of the records of consumer and Streams groups.

Owns: nothing.
Invariants: those of the record modules of groups.consumer and groups.streams.
Source: Kafka's coordinator schemas. The schema names of the two types differ only by prefix.
"""

from collections.abc import Callable
from typing import Any

from pylog.coordinator.groups.state.modern_group import FIRST_EPOCH, NO_RECORD, AssignedGroup
from pylog.coordinator.runtime.journal import Record
from pylog.protocol import messages, records


class Kind:
    """One group type.

    prefix: of the schema names. make_member: creates a member from its id. nothing: creates an
    empty target.
    """

    def __init__(self, prefix: str, make_member: Callable[[str], Any],
                 nothing: Callable[[], Any]) -> None:
        self._prefix = prefix
        self._make_member = make_member
        self._nothing = nothing
        self._keys: dict[str, Any] = {}  # Key classes by name, without the prefix.

    # ---- keys -----------------------------------------------------------------------------------

    def key(self, name: str, **fields: str) -> bytes:
        """Encode a key. name: of the schema, without the prefix."""
        new = self._keys.get(name)
        if new is None:
            new = self._keys[name] = getattr(messages, f"{self._prefix}{name}Key")
        return records.encode_key(new(**fields))

    def group_key(self, group_id: str) -> bytes:
        return self.key("Metadata", group_id=group_id)

    def member_key(self, group_id: str, member_id: str) -> bytes:
        return self.key("MemberMetadata", group_id=group_id, member_id=member_id)

    def target_epoch_key(self, group_id: str) -> bytes:
        return self.key("TargetAssignmentMetadata", group_id=group_id)

    def target_key(self, group_id: str, member_id: str) -> bytes:
        return self.key("TargetAssignmentMember", group_id=group_id, member_id=member_id)

    def assignment_key(self, group_id: str, member_id: str) -> bytes:
        return self.key("CurrentMemberAssignment", group_id=group_id, member_id=member_id)

    # ---- to records -----------------------------------------------------------------------------

    def target_epoch_record(self, group: AssignedGroup) -> Record:
        new = getattr(messages, f"{self._prefix}TargetAssignmentMetadataValue")
        return self.target_epoch_key(group.id), records.encode_value(0, new(
            assignment_epoch=group.assignment_epoch, assignment_timestamp=group.assignment_ms))

    def member_gone(self, group_id: str, member_id: str) -> list[Record]:
        """Return a member's tombstones. In Kafka's order, because its replay depends on it."""
        return [(self.assignment_key(group_id, member_id), None),
                (self.target_key(group_id, member_id), None),
                (self.member_key(group_id, member_id), None)]

    # ---- from records ---------------------------------------------------------------------------

    def steps(self, **own: Callable[[Any, Any, Any], None]
              ) -> dict[str, Callable[[Any, Any, Any], None]]:
        """Return {key class name: function that applies a record}."""
        return self._named({"TargetAssignmentMetadata": _replay_target_epoch, **own})

    def gone(self, **own: Callable[[Any, Any], None]) -> dict[str, Callable[[Any, Any], None]]:
        """Return {key class name: function that applies a tombstone}."""
        return self._named({
            "Metadata": _forget_group, "MemberMetadata": _forget_member,
            "TargetAssignmentMetadata": _forget_target_epoch,
            "TargetAssignmentMember": _forget_target,
            "CurrentMemberAssignment": self._forget_assignment, **own})

    def _named(self, functions: dict[str, Any]) -> dict[str, Any]:
        return {f"{self._prefix}{name}Key": function for name, function in functions.items()}

    def copy_of(self, group: AssignedGroup, member_id: str) -> Any:
        """Return a copy of the member, or a new member, to be changed and put into the group."""
        member = group.members.get(member_id)
        return self._make_member(member_id) if member is None else member.copy()

    def _forget_assignment(self, group: Any, row: Any) -> None:
        member = group.members.get(row.member_id)
        if member is not None:
            fresh = member.copy()
            fresh.epoch, fresh.previous_epoch = -1, -1
            fresh.assigned, fresh.revoking = self._nothing(), self._nothing()
            group.put(fresh)


def member_state(group: AssignedGroup, member_id: str, member_record: Callable[[Any, Any], Record],
                 target_record: Callable[[Any, str, Any], Record],
                 assignment_record: Callable[[Any, Any], Record]) -> list[Record]:
    """Return the records of one member, in replay order; none if the member is gone."""
    member = group.members.get(member_id)
    if member is None:
        return []
    found = [member_record(group, member)]
    target = group.targets.get(member_id)
    if target is not None:
        found.append(target_record(group, member_id, target))
    return [*found, assignment_record(group, member)]


def apply(row: Any, value: bytes | None, steps: dict[str, Callable[[Any, Any, Any], None]],
          gone: dict[str, Callable[[Any, Any], None]], find: Callable[[str], Any],
          make: Callable[[str], Any]) -> tuple[str, str | None]:
    """Apply a record, or a tombstone if the group exists. row: its key.

    Returns (group id, member id or None). Raises ProtocolError.
    """
    kind = type(row).__name__
    if value is not None:
        steps[kind](make(row.group_id), row, records.decode_value(row, value)[1])
    else:
        group = find(row.group_id)
        if group is not None:
            gone[kind](group, row)
    return row.group_id, getattr(row, "member_id", None)


def dated(rows: Any, name_of: Callable[[Any], Any], epoch: int) -> dict[Any, dict[int, int]]:
    """Return the epoch of each held partition. Older Kafka versions omit them: use the member's."""
    return {name_of(row): dict(zip(
        row.partitions, row.assignment_epochs or [epoch] * len(row.partitions), strict=True))
        for row in rows if row.partitions}


def _replay_target_epoch(group: AssignedGroup, row: Any, value: Any) -> None:
    group.assignment_epoch = value.assignment_epoch
    group.assignment_ms = value.assignment_timestamp


def _forget_member(group: Any, row: Any) -> None:
    if row.member_id in group.members:
        group.remove(row.member_id)


def _forget_target(group: AssignedGroup, row: Any) -> None:
    group.targets.pop(row.member_id, None)


def _forget_target_epoch(group: AssignedGroup, row: Any) -> None:
    group.assignment_epoch, group.assignment_ms = FIRST_EPOCH, 0


def _forget_group(group: AssignedGroup, row: Any) -> None:
    """Remove a member; no record of it is left."""
    group.epoch, group.hash = NO_RECORD, 0
