"""What a change of a topic means for one node: which of its replicas to do what with.

Owns: nothing.
Invariants: (1) commands follow from two states of the topic alone, whoever changed it; (2) only a
  newer partition epoch is a change; (3) a replica that is dropped or follows another leader, or the
  same one under another epoch, is stopped first.
Source: KIP-631; Kafka's ReplicaManager.applyDelta and TopicsDelta.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from pylog.metadata.image.image import Topic

Commands = namedtuple("Commands", ("stop", "drop", "open", "lead", "follow"))
Commands.__doc__ = """Partition indexes, each list in rising order.

stop: fetched from their leader until now. drop: no longer this node's. open: this node's from now
on. lead: led from now on, or led with other replicas. follow: to be fetched from their leader.
"""
Registered = namedtuple("Registered", ("host", "port", "broker_epoch"))
Registered.__doc__ = "A broker that others fetch from."


def commands(before: Topic | None, after: Topic | None, node_id: int) -> Commands:
    """What to do when `before` becomes `after`; None: there is no such topic."""
    assert before is None or after is None or before.id == after.id, (before.id, after.id)
    found = Commands([], [], [], [], [])
    olds = before.partitions if before is not None else ()
    news = after.partitions if after is not None else ()
    for index in range(max(len(olds), len(news))):
        old = olds[index] if index < len(olds) else None
        new = news[index] if index < len(news) else None
        # Keeps (2). Equal states are one object in most cases.
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
        found.stop.append(index)        # Keeps (3).
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
