"""Partition assignment for share groups: the assignor named simple.

Owns: nothing.
Invariants: every partition has a member if any member subscribes to its topic; for each set of
  subscribed topics, the number of partitions per member differs by at most one; members keep their
  partitions where this allows it.
Source: KIP-932; Kafka's SimpleAssignor. Partitions are shared by several members if there are more
  members than partitions.
"""

from collections.abc import Iterable, Mapping

Place = tuple[bytes, int]      # (topic id, partition)
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
    found: dict[str, set[Place]] = {member: set() for member in members}
    if len(set(topics_of.values())) <= 1:
        shares = [(members, sorted(set().union(*topics_of.values())))]
    else:
        every = sorted(set().union(*topics_of.values()))
        shares = [([member for member in members if topic in topics_of[member]], [topic])
                  for topic in every]
    for group, topics in shares:
        places = [(topic, index) for topic in topics for index in sorted(assignable.get(topic, ()))]
        for member, some in _balanced(group, places, owned).items():
            found[member] |= some
    return {member: _by_topic(places) for member, places in found.items()}


def _by_topic(places: Iterable[Place]) -> Assignment:
    found: dict[bytes, list[int]] = {}
    for topic, index in sorted(places):
        found.setdefault(topic, []).append(index)
    return {topic: tuple(indexes) for topic, indexes in found.items()}


def _balanced(members: list[str], places: list[Place],
              owned: Mapping[str, set[Place]]) -> dict[str, set[Place]]:
    """Assign each partition to the same number of members, as few as give every member work."""
    if not places or not members:
        return {member: set() for member in members}
    sharing = -(-len(members) // len(places))
    total = sharing * len(places)
    room = {member: -(-total * (number + 1) // len(members)) - -(-total * number // len(members))
            for number, member in enumerate(members)}
    # Keep existing assignments, up to each member's fair share.
    all_places = set(places)
    found = {member: set(sorted(owned[member] & all_places)[:room[member]]) for member in members}
    holders: dict[Place, list[str]] = {place: [] for place in places}
    for member in members:
        for place in sorted(found[member]):
            if len(holders[place]) < sharing:
                holders[place].append(member)
            else:
                found[member].discard(place)
    _fill(members, places, sharing, room, found, holders)
    return found


def _fill(members: list[str], places: list[Place], sharing: int, room: Mapping[str, int],
          found: dict[str, set[Place]], holders: dict[Place, list[str]]) -> None:
    """Assign the remaining partitions to members with room, round-robin."""
    waiting = [member for member in members if len(found[member]) < room[member]]
    turn = 0
    for place in places:
        passed = 0
        while len(holders[place]) < sharing and waiting and passed < len(waiting):
            turn %= len(waiting)
            member = waiting[turn]
            if place in found[member]:
                # This member already has the partition; try the next one.
                turn += 1
                passed += 1
                continue
            found[member].add(place)
            holders[place].append(member)
            passed = 0
            if len(found[member]) >= room[member]:
                waiting.pop(turn)
            else:
                turn += 1
