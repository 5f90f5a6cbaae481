"""Which members of a share group get which partitions: the assignor called simple.

Owns: nothing.
Invariants: (1) every partition has a member that wants its topic, when there is one; (2) members
  have as many partitions as the others, give or take one, for each set of subscribed topics; (3)
  what a member has it keeps where that allows it.
Source: KIP-932; Kafka's SimpleAssignor. A partition has several members when there are more members
  than partitions.
"""

from collections.abc import Iterable, Mapping

Place = tuple[bytes, int]      # (topic id, partition)
Assignment = dict[bytes, tuple[int, ...]]


def assign(wanted: Mapping[str, Iterable[bytes]], assignable: Mapping[bytes, Iterable[int]],
           had: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Member -> what it gets. wanted: member -> topic ids; assignable: topic id -> partitions."""
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
    """Each place has as many members as every other: no fewer than are needed to use them all."""
    if not places or not members:
        return {member: set() for member in members}
    sharing = -(-len(members) // len(places))
    total = sharing * len(places)
    room = {member: -(-total * (number + 1) // len(members)) - -(-total * number // len(members))
            for number, member in enumerate(members)}
    # Keeps (3): as much of what there was as (2) allows.
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
    """Gives what is left to members that have room, in turn."""
    waiting = [member for member in members if len(found[member]) < room[member]]
    turn = 0
    for place in places:
        passed = 0
        while len(holders[place]) < sharing and waiting and passed < len(waiting):
            turn %= len(waiting)
            member = waiting[turn]
            if place in found[member]:
                # It has this one already: the next one may take it.
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
