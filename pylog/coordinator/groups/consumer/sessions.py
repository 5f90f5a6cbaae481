"""The session and rebalance timers of members of consumer groups.

Owns: nothing; the timers belong to the GroupStore.
Invariants: a member has at most one timer of each type.
Source: Kafka's GroupMetadataManager.
"""

from pylog.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember
from pylog.coordinator.groups.state.group_config import GROUP_RESOURCE
from pylog.coordinator.groups.state.group_store import GroupStore

SESSION, REBALANCE, JOIN, SYNC = (
    "consumer session", "consumer rebalance", "consumer join", "consumer sync")


def setting(store: GroupStore, group_id: str, name: str) -> int:
    """Return a group setting, or the broker's default."""
    return store.limits.consumer.of_group(
        store.image().configs.get((GROUP_RESOURCE, group_id)), name)


def expect(store: GroupStore, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Restart the member's session."""
    session_ms = setting(store, group.id, "consumer.session.timeout.ms") \
        if member.classic is None else member.classic.session_ms
    store.timers.set((SESSION, group.id, member.id), store.clock.now_ms() + session_ms)


def cancel(store: GroupStore, group_id: str, member_id: str) -> None:
    for kind in (SESSION, REBALANCE, JOIN, SYNC):
        store.timers.cancel((kind, group_id, member_id))
