"""Partition assignment for share groups: the assignor named simple.

Owns: nothing.
Invariants: every partition has a member if any member subscribes to its topic; for each set of
  subscribed topics, the number of partitions per member differs by at most one; members keep their
  partitions where this allows it.
Source: KIP-932; Kafka's SimpleAssignor. Partitions are shared by several members if there are more
  members than partitions.
"""

from collections.abc import Iterable, Mapping

TopicIdPartition = tuple[bytes, int]      # (topic id, partition)
Assignment = dict[bytes, tuple[int, ...]]


def assign(wanted: Mapping[str, Iterable[bytes]], assignable: Mapping[bytes, Iterable[int]],
           had: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Return {member: assignment}.

    wanted: member -> topic ids. assignable: topic id -> partitions.
    """
    topics_of = {member: frozenset(topics) for member, topics in wanted.items()}
    members = sorted(topics_of)
    owned = {member: {(topic, index) for topic, indexes in had.get(member, {}).items()
                      for index in indexes} for member in members}
    found: dict[str, set[TopicIdPartition]] = {member: set() for member in members}
    if len(set(topics_of.values())) <= 1:
        shares = [(members, sorted(set().union(*topics_of.values())))]
    else:
        every = sorted(set().union(*topics_of.values()))
        shares = [([member for member in members if topic in topics_of[member]], [topic])
                  for topic in every]
    for group, topics in shares:
        partitions = [(topic,
                       index) for topic in topics for index in sorted(assignable.get(topic, ()))]
        for member, some in _balanced(group, partitions, owned).items():
            found[member] |= some
    return {member: _by_topic(partitions) for member, partitions in found.items()}


def _by_topic(partitions: Iterable[TopicIdPartition]) -> Assignment:
    found: dict[bytes, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return {topic: tuple(indexes) for topic, indexes in found.items()}


def _balanced(members: list[str], partitions: list[TopicIdPartition],
              owned: Mapping[str, set[TopicIdPartition]]) -> dict[str, set[TopicIdPartition]]:
    """Assign each partition to the same number of members, as few as give every member work."""
    if not partitions or not members:
        return {member: set() for member in members}
    sharing = -(-len(members) // len(partitions))
    total = sharing * len(partitions)
    room = {member: -(-total * (number + 1) // len(members)) - -(-total * number // len(members))
            for number, member in enumerate(members)}
    # Keep existing assignments, up to each member's fair share.
    all_partitions = set(partitions)
    found = {member: set(sorted(owned[member] & all_partitions)[:room[member]])
             for member in members}
    holders: dict[TopicIdPartition, list[str]] = {partition: [] for partition in partitions}
    for member in members:
        for partition in sorted(found[member]):
            if len(holders[partition]) < sharing:
                holders[partition].append(member)
            else:
                found[member].discard(partition)
    _fill(members, partitions, sharing, room, found, holders)
    return found


def _fill(members: list[str], partitions: list[TopicIdPartition], sharing: int,
          room: Mapping[str, int],
          found: dict[str, set[TopicIdPartition]],
          holders: dict[TopicIdPartition, list[str]]) -> None:
    """Assign the remaining partitions to members with room, round-robin."""
    waiting = [member for member in members if len(found[member]) < room[member]]
    turn = 0
    for partition in partitions:
        passed = 0
        while len(holders[partition]) < sharing and waiting and passed < len(waiting):
            turn %= len(waiting)
            member = waiting[turn]
            if partition in found[member]:
                # This member already has the partition; try the next one.
                turn += 1
                passed += 1
                continue
            found[member].add(partition)
            holders[partition].append(member)
            passed = 0
            if len(found[member]) >= room[member]:
                waiting.pop(turn)
            else:
                turn += 1
