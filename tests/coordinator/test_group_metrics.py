"""How many groups and offsets figures take."""

from pylog.coordinator.group_metrics import Room


def test_groups_and_their_offsets_are_taken_to_the_last_that_has_room():
    room = Room(groups=2, offsets=5)
    assert room.take(3) and not room.is_full()
    assert room.take(2) and room.is_full()
    assert not room.take(0) and room.left_out == 1


def test_once_a_group_finds_no_room_for_its_offsets_no_later_one_is_taken():
    room = Room(groups=10, offsets=5)
    assert room.take(5) and not room.take(1)
    assert room.is_full() and not room.take(0)
    assert room.left_out == 2
