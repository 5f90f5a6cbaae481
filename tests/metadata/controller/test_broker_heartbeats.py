"""Sessions of brokers, to the nanosecond, and permission to shut down."""

from types import SimpleNamespace

import pytest

from pylog.metadata.controller.broker_heartbeats import Heartbeats
from pylog.metadata.image.image import Broker, Image

SESSION = 100


def image(*fenced, epochs=(5, 6, 7), stopping=()):
    """Return an image of brokers 1, 2, 3 with these epochs."""
    return Image(brokers={
        id_: Broker(id_, epoch, b"", (), (), None, id_ in fenced, id_ in stopping, ())
        for id_, epoch in enumerate(epochs, 1)})


@pytest.fixture
def beats():
    made = Heartbeats(SESSION)
    made.begin(image(3), 1000)
    return made


def test_unfenced_broker_has_a_session_from_the_start_of_the_term(beats):
    assert [beats.is_alive(id_, 1000) for id_ in (1, 2, 3, 4)] == [True, True, False, False]
    assert [beats.is_alive(id_, 1099) for id_ in (1, 2)] == [True, True]
    assert [beats.is_alive(id_, 1100) for id_ in (1, 2)] == [False, False]
    beats.touch(2, 9, 0, 1050)
    assert (beats.silent(image(3), 1099), beats.silent(image(3), 1100)) == ([], [1])
    assert (beats.silent(image(3), 1149), beats.silent(image(3), 1150)) == ([1], [1, 2])
    assert beats.silent(image(), 1000) == [3]


def test_first_session_to_expire_is_returned(beats):
    beats.touch(1, 9, 0, 1020)
    assert beats.next_end_ns(image(3), 1030) == 1100
    beats.touch(2, 9, 0, 1040)
    assert beats.next_end_ns(image(3), 1050) == 1120
    assert beats.next_end_ns(image(1, 3), 1050) == 1140
    assert beats.next_end_ns(image(1, 2, 3), 1050) == 1150
    assert beats.next_end_ns(image(epochs=(5,)), 1050) == 1120
    beats.local_id = 1
    assert beats.next_end_ns(image(3), 1050) == 1140
    beats.end(2)
    assert beats.next_end_ns(image(3), 1050) == 1150


def test_a_broker_of_this_process_is_never_silent(beats):
    beats.local_id = 1
    assert beats.is_alive(1, 10**9) and beats.silent(image(3), 10**9) == [2]
    beats.local_id = 4
    assert not beats.is_alive(4, 1000)


def test_a_session_ends_by_a_verdict_and_with_the_registration(beats):
    beats.end(1)
    beats.end(9)
    assert not beats.is_alive(1, 1000) and beats.is_alive(2, 1000)
    beats.touch(1, 9, 0, 1001)
    assert beats.is_alive(1, 1001)
    beats.follow(image(epochs=(5, 16)))
    assert [beats.is_alive(id_, 1001) for id_ in (1, 2, 3)] == [True, False, False]
    assert beats.is_caught_up(2, 16) and not beats.is_caught_up(3, 99)


def test_a_broker_has_caught_up_at_the_newest_record_of_its_registration(beats):
    assert (beats.is_caught_up(1, 4), beats.is_caught_up(1, 5)) == (False, True)
    beats.registered(1, 40)
    assert (beats.is_caught_up(1, 39), beats.is_caught_up(1, 40)) == (False, True)


def test_connection_belongs_to_the_broker_of_its_latest_heartbeat(beats):
    beats.touch(1, 9, 70, 1001)
    beats.touch(2, 9, 71, 1001)
    beats.touch(1, 9, 72, 1002)
    assert [beats.ended(connection) for connection in (70, 71, 73, 72)] == [None, 2, None, 1]


def test_heartbeat_of_a_closed_connection_is_ignored(beats):
    beats.came(1, 70)
    assert beats.counts(1, 70) and beats.ended(70) == 1
    assert not beats.counts(1, 70) and beats.counts(2, 70) and beats.counts(1, 0)
    beats.came(1, 70)  # a further request in flight,
    assert not beats.counts(1, 70)
    beats.came(1, 71)  # and a later one
    assert beats.counts(1, 71) and beats.ended(71) == 1


def test_unfenced_broker_has_a_session_before_its_next_heartbeat(beats):
    beats.end(1)
    assert not beats.is_alive(1, 1500)
    beats.unfenced(1, 1500)
    assert beats.is_alive(1, 1500)


def test_broker_stops_once_all_active_brokers_have_its_leader_changes(beats):
    beats.touch(1, 20, 0, 1001)
    beats.touch(2, 29, 0, 1001)
    assert not beats.is_stopping(1)
    beats.stopping(1, 30)
    beats.stopping(1, 25)
    now = image(3, stopping=(1,))
    assert beats.is_stopping(1) and not beats.is_stopping(2) and not beats.is_stopping(9)
    assert not beats.may_stop(now, 1)
    beats.touch(2, 30, 0, 1002)
    assert beats.may_stop(now, 1)
    # Fenced and stopping brokers are not waited for; the broker of this process sends no
    # heartbeats.
    beats.touch(2, 29, 0, 1003)
    assert beats.may_stop(image(2, 3, stopping=(1,)), 1)
    assert beats.may_stop(image(3, stopping=(1, 2)), 1)
    assert not beats.may_stop(image(stopping=(1, 2)), 1)
    beats.local_id = 2
    assert beats.may_stop(now, 1)
    # When it is fenced, its shutdown is complete.
    beats.follow(image(3))
    assert beats.is_stopping(1)
    beats.follow(image(1, 3))
    assert not beats.is_stopping(1)


def test_new_term_starts_with_the_images_state():
    beats = Heartbeats(SESSION)
    assert beats.ended(7) is None and beats.next_end_ns(SimpleNamespace(brokers={}), 7) == 107
    beats.follow(image())
    assert beats.silent(image(), 7) == [1, 2, 3]
