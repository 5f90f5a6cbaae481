"""The controller to try next."""

import asyncio

from pylog.peer.controllers import Controller, Controllers, voters_of


def two() -> Controllers:
    return Controllers(voters_of(["1@one:9093", "2@[::2]:9094"]))


def test_voters_are_read_with_their_addresses():
    assert two().voters == {1: Controller(1, "one", 9093), 2: Controller(2, "::2", 9094)}


def test_voters_are_tried_in_turn_while_the_active_one_is_unknown():
    known, asked = two(), []
    for _ in range(4):
        asked.append(known.next().id)
        known.failed(asked[-1])
    assert asked == [1, 2, 1, 2]


def test_active_controller_is_contacted_at_its_reported_address():
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


def test_inactive_leader_of_the_newest_epoch_is_retried():
    known = two()
    known.learned(1, 5)
    known.refused(1)
    assert known.next().id == 1


def test_rejecting_controller_not_known_to_lead_is_replaced_by_another():
    known = two()
    known.refused(1)
    assert known.next().id == 2
    known.refused(2)
    assert known.next().id == 1


def test_failed_controller_is_replaced_by_another():
    known = two()
    known.learned(1, 5)
    known.failed(1)
    assert known.next().id == 2


def test_active_controller_that_is_not_a_voter_is_not_contacted():
    known = two()
    known.learned(9, 5, [(9, "nine", 1)])
    assert known.next().id == 1


def test_waiting_caller_is_notified_of_another_active_controller():
    async def scene():
        known = two()
        known.learned(1, 5)
        first = known.change()
        known.learned(1, 5)
        assert known.change() is first and not first.done()
        known.learned(2, 6)
        assert first.done() and not known.change().done()

    asyncio.run(scene())
