"""Placement of new replicas, in clusters of any shape."""

import random
from collections import Counter

import pytest

from pylog.metadata.controller.partitions.replica_placement import place
from pylog.metadata.image.image import Broker, Image
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode


def image(rows):
    """Return an image; rows: (rack, fenced, stopping) of brokers 1, 2, ..."""
    return Image(brokers={
        id_: Broker(id_, 0, b"", (), (), rack, fenced, stopping, ())
        for id_, (rack, fenced, stopping) in enumerate(rows, 1)})


def drawn(source):
    return [(source.choice((None, "a", "b", "c")), source.random() < 0.2, source.random() < 0.1)
            for _ in range(source.randrange(1, 9))]


def test_replicas_lie_on_different_brokers_and_on_as_many_racks_as_can_be(random_source):
    for _ in range(400):
        rows = drawn(random_source)
        usable = {id_: row for id_, row in enumerate(rows, 1) if not row[2]}
        active = [id_ for id_, row in usable.items() if not row[1]]
        factor = random_source.randrange(1, 5)
        given = image(rows), random_source.randrange(1, 20), factor, random_source
        if factor > len(usable) or not active:
            with pytest.raises(Refusal) as caught:
                place(*given)
            assert caught.value.error == ErrorCode.INVALID_REPLICATION_FACTOR
            count = f"only {len(usable)} broker" if factor > len(usable) else "currently fenced"
            assert count in str(caught.value)
            continue
        made = place(*given)
        assert len(made) == given[1]
        racks = {row[0] or "" for row in usable.values()}
        for replicas in made:
            assert len(set(replicas)) == len(replicas) == factor, (rows, replicas)
            assert replicas[0] in active and set(replicas) <= set(usable)
            assert len({rows[id_ - 1][0] or "" for id_ in replicas}) == min(factor, len(racks))
            for id_ in replicas:  # Active brokers of a rack are chosen first.
                if id_ not in active:
                    rack = {other for other in active if rows[other - 1][0] == rows[id_ - 1][0]}
                    assert rack <= set(replicas), (rows, replicas)


@pytest.mark.parametrize("rows", [
    [(None, False, False)] * 4, [("a", False, False)] * 3,
    [("a", False, False), ("b", False, False), ("c", False, False)],
    [("a", False, False), ("a", False, False), ("b", False, False), ("b", False, False)]])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_brokers_lead_and_hold_the_same_number(rows, factor):
    count = 5 * len(rows)
    made = place(image(rows), count, factor, random.Random(3))
    led = Counter(replicas[0] for replicas in made)
    # With several brokers in several racks, each rack's order restarts with every partition.
    spread = 2 if 1 < len({row[0] for row in rows}) < len(rows) else 0
    assert sum(led.values()) == count and max(led.values()) - min(led.values()) <= spread
    held = Counter(id_ for replicas in made for id_ in replicas)
    assert sum(held.values()) == count * factor
    assert max(held.values()) - min(held.values()) <= factor


def test_placement_is_determined_by_the_random_source():
    rows = [("a", False, False)] * 2 + [("b", False, False)] * 3 + [("b", True, False)]
    first, again = (place(image(rows), 12, 3, random.Random(7)) for _ in range(2))
    assert first == again != place(image(rows), 12, 3, random.Random(8))
    assert len(set(first)) > 3  # The order of brokers varies.
