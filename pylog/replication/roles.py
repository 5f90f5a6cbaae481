"""Turns a change of a topic into commands for this node's replicas.

Owns: nothing.
Invariants: commands depend only on the topic's two states, not on the origin of the change; only a
  newer partition epoch is a change; a replica that is removed, follows another leader, or the same
  leader in another epoch, is stopped first.
Source: KIP-631; Kafka's ReplicaManager.applyDelta and TopicsDelta.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from pylog.metadata.image.image import Topic

Commands = namedtuple("Commands", ("stop", "drop", "open", "lead", "follow"))
Commands.__doc__ = """Partition indexes, each list in ascending order.

stop: no longer fetched from their leader. drop: no longer assigned to this node. open: newly
assigned to it. lead: led from now on, or with changed replicas. follow: fetched from their leader.
"""
Registered = namedtuple("Registered", ("host", "port", "broker_epoch"))
Registered.__doc__ = "A broker that others fetch from."


def commands(before: Topic | None, after: Topic | None, node_id: int) -> Commands:
    """Return the Commands for a change from `before` to `after`; None: the topic does not exist."""
    assert before is None or after is None or before.id == after.id, (before.id, after.id)
    found = Commands([], [], [], [], [])
    olds = before.partitions if before is not None else ()
    news = after.partitions if after is not None else ()
    for index in range(max(len(olds), len(news))):
        old = olds[index] if index < len(olds) else None
        new = news[index] if index < len(news) else None
        # Only a newer partition epoch is a change. Equal states are usually one object.
        if old is new or old is not None and new is not None \
                and new.partition_epoch <= old.partition_epoch:
            continue
        _compare(found, index, old, new, node_id)
    return found


def _compare(found: Commands, index: int, old, new, node_id: int) -> None:
    had = old is not None and node_id in old.replicas
    has = new is not None and node_id in new.replicas
    was_fetched = had and _is_followed(old, node_id)
    is_fetched = has and _is_followed(new, node_id)
    same = was_fetched and is_fetched and (old.leader, old.leader_epoch) == (
        new.leader, new.leader_epoch)
    if was_fetched and not same:
        found.stop.append(index)  # Stopped before its role changes.
    if had and not has:
        found.drop.append(index)
    if has and not had:
        found.open.append(index)
    if has and new.leader == node_id:
        found.lead.append(index)
    elif is_fetched and not same:
        found.follow.append(index)


def _is_followed(state, node_id: int) -> bool:
    return state.leader not in (node_id, -1)
