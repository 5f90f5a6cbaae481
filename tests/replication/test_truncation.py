"""The truncation offset of a follower, for every way in which two histories can differ."""

import itertools

from pylog.replication.truncation import Cut, on_divergence, out_of_range


def history(*ends):
    """Return a list of the epoch of each record, from [(epoch, end offset)] in ascending order."""
    epochs, start = [], 0
    for epoch, end in ends:
        epochs += [epoch] * (end - start)
        start = end
    return epochs


def end_for(epochs, epoch):
    """Return (largest epoch <= `epoch`, its end), like Log.end_for_epoch()."""
    known = [one for one in epochs if one <= epoch]
    if not known or epoch > epochs[-1]:
        return -1, -1
    return known[-1], len(known)


def leaders_answer(leader, offset, epoch):
    """Return (epoch, end) of a diverging response, or None if the follower's history matches the
    leader's.
    """
    below = [one for one in leader if one <= epoch]
    found, end = (below[-1], len(below)) if below else (-1, 0)
    return None if (found, end) == (epoch, end) and end >= offset else (found, end)


def common(one, other):
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other))))


def test_follower_truncates_to_a_prefix_of_its_leader(random_source):
    for _ in range(3000):
        shared = history((0, random_source.randint(0, 4)), (2, random_source.randint(4, 8)))
        follower = shared + [3] * random_source.randint(0, 4) + [5] * random_source.randint(0, 3)
        leader = shared + [4] * random_source.randint(0, 4) + [6] * random_source.randint(0, 3)
        if random_source.random() < 0.3:
            leader = leader[:random_source.randint(0, len(leader))]
        before, rounds = common(follower, leader), 0
        while follower:
            answer = leaders_answer(leader, len(follower), follower[-1])
            if answer is None:
                break
            epoch, end = answer
            goal = on_divergence(end, epoch, *end_for(follower, epoch), len(follower))
            assert goal <= len(follower)
            rounds += 1
            assert goal < len(follower) and rounds < 8, (follower, leader, answer)
            follower = follower[:goal]
        assert follower == leader[:len(follower)]
        assert len(follower) == before or len(follower) == common(follower, leader)


def test_unknown_epoch_ends_at_the_leaders_end():
    assert on_divergence(40, 7, -1, -1, 100) == 40
    assert on_divergence(140, 7, -1, -1, 100) == 100


def test_the_same_epoch_ends_at_the_lower_end():
    assert on_divergence(40, 3, 3, 60, 100) == 40
    assert on_divergence(60, 3, 3, 40, 100) == 40


def test_other_known_epoch_ends_at_its_local_end():
    assert on_divergence(40, 5, 3, 30, 100) == 30


def test_undefined_end_truncates_nothing():
    assert on_divergence(-1, 3, 3, 60, 100) == 100


def test_out_of_range_is_cut_at_the_leaders_end_or_begins_at_its_start():
    assert out_of_range(0, 80, 100) == Cut(80, None)
    assert out_of_range(150, 200, 100) == Cut(None, 150)
    assert out_of_range(50, 200, 100) == Cut(None, None)
    assert out_of_range(-1, -1, 100) == Cut(0, None)
