"""A group with server-side assignment: consumer (KIP-848) or Streams (KIP-1071).

Owns: the group's epochs, members and targets.
Invariants: the target records precede the record of their assignment epoch.
Source: KIP-848; Kafka's ModernGroup.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pylog.coordinator.groups.state.classic_group import Committed
from pylog.coordinator.runtime.journal import Record

EMPTY, ASSIGNING, RECONCILING, STABLE = "Empty", "Assigning", "Reconciling", "Stable"
NO_RECORD = 0  # Epoch of a group whose records are gone.
FIRST_EPOCH = 1  # Epoch of a group without members, and of its assignment.


class AssignedGroup(Committed):
    """The common part of consumer and Streams groups.

    hash: of the topics' metadata, 0 for none. refresh_ms: when to check the topics again, in ms of
    a monotonic clock.
    """

    __slots__ = ("assignment_epoch", "assignment_ms", "epoch", "hash", "members", "refresh_ms",
                 "targets")
    members: dict[str, Any]
    targets: dict[str, Any]

    def __init__(self, id_: str) -> None:
        super().__init__(id_)
        self.epoch = FIRST_EPOCH
        self.hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_ms = 0
        self.refresh_ms = 0
        self.members = {}
        self.targets = {}

    @property
    def state(self) -> str:
        if not self.members:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return ASSIGNING
        epoch = self.assignment_epoch
        return STABLE if all(member.is_at(epoch) for member in self.members.values()) \
            else RECONCILING

    @property
    def generation(self) -> int:
        """Return the epoch, which the classic protocol calls generation."""
        return self.epoch

    @property
    def is_spent(self) -> bool:
        """Return True if the group holds nothing that is worth a record or memory."""
        return self.epoch <= FIRST_EPOCH and not (
            self.members or self.offsets or self.unstable)


def retarget(groups: Any, group: AssignedGroup, made: Mapping[str, Any], nothing: Any,
             target_record: Callable[[Any, str, Any], Record],
             epoch_record: Callable[[Any], Record], now_ms: int) -> None:
    """Set every member's target for the group epoch, `nothing` for members missing in `made`."""
    for member_id in group.members:
        target = made.get(member_id, nothing)
        if target != group.targets.get(member_id):
            group.targets[member_id] = target
            groups.records.append(target_record(group, member_id, target))
            groups.changed.add((group.id, (member_id,)))
    group.assignment_epoch, group.assignment_ms = group.epoch, now_ms
    groups.records.append(epoch_record(group))
    groups.changed.add((group.id, None))
    groups.events["generation"] += 1
