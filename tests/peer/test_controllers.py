"""The controller to try next."""

import asyncio

from pylog.peer.controllers import Controller, Controllers, voters_of


def two() -> Controllers:
    return Controllers(voters_of(["1@one:9093", "2@[::2]:9094"]))


def test_voters_are_read_with_their_addresses():
    assert two().voters == {1: Controller(1, "one", 9093), 2: Controller(2, "::2", 9094)}


def test_each_voter_is_asked_in_turn_while_none_is_known_to_be_active():
    known, asked = two(), []
    for _ in range(4):
        asked.append(known.next().id)
        known.failed(asked[-1])
    assert asked == [1, 2, 1, 2]


def test_the_active_one_is_asked_where_it_says_it_is():
    known = two()
    assert known.learned(2, 5, [(2, "moved", 1)])
    assert known.next() == Controller(2, "moved", 1)
    assert not known.learned(2, 5)


def test_an_older_epochs_leader_is_no_news():
    known = two()
    known.learned(2, 5)
    assert not known.learned(1, 4)
    assert known.next().id == 2


def test_no_leader_of_the_same_epoch_is_no_news():
    known = two()
    known.learned(2, 5)
    known.learned(-1, 5)
    assert known.next().id == 2


def test_one_that_does_not_decide_yet_is_asked_again_if_it_leads_the_newest_epoch():
    known = two()
    known.learned(1, 5)
    known.refused(1)
    assert known.next().id == 1


def test_one_that_is_not_known_to_lead_is_left_for_another_when_it_refuses():
    known = two()
    known.refused(1)
    assert known.next().id == 2
    known.refused(2)
    assert known.next().id == 1


def test_a_failed_one_is_left_for_another():
    known = two()
    known.learned(1, 5)
    known.failed(1)
    assert known.next().id == 2


def test_an_active_one_that_is_no_voter_here_is_not_asked():
    known = two()
    known.learned(9, 5, [(9, "nine", 1)])
    assert known.next().id == 1


def test_who_waits_hears_of_another_active_controller():
    async def scene():
        known = two()
        known.learned(1, 5)
        first = known.change()
        known.learned(1, 5)
        assert known.change() is first and not first.done()
        known.learned(2, 6)
        assert first.done() and not known.change().done()

    asyncio.run(scene())
