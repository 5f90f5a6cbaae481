"""Batches appended as a group, batches from a leader, and bytes that are not a batches."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "batches_that_lie_behind_each_other_are_written_at_once": "together",
    "each_of_several_batches_has_an_answer_of_its_own": "each",
    "several_batches_roll_where_each_would": "roll",
    "batches_without_room_together_are_written_alone": "alone",
    "a_follower_takes_whole_batches_as_they_are": "follow",
    "a_segment_reaches_as_far_as_its_index_can_say": "far",
    "a_copy_begins_with_the_batch_that_holds_its_start": "within",
    "damage_is_copied_as_it_lies": "damage",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_followers(tmp_path, scene):
    play("log_followers", tmp_path, scene)
