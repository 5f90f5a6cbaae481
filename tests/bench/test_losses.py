"""Pauses reported by bench.cluster.losses."""

from bench.cluster.losses import Traffic


def traffic(acknowledged, received):
    found = Traffic("", "")
    found.acknowledged, found.received = acknowledged, received
    return found


def test_a_pause_counts_from_the_loss_and_to_the_end():
    assert traffic([1.0, 2.0, 3.0], [1.0, 2.5]).pause_s(1.5, 5.5) == 3.0
    assert traffic([], [2.0]).pause_s(1.0, 3.5) == 2.5


def test_longer_pause_of_both_directions_is_used():
    even = [number / 10 for number in range(100)]
    assert round(traffic(even, [*even[:50], *even[55:]]).pause_s(0.0, 9.9), 3) == 0.6
