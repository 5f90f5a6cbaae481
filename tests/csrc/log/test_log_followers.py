"""Batches appended as a group, batches from a leader, and bytes that are not a batches."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "consecutive_batches_are_written_together": "together",
    "each_batch_has_its_own_result": "each",
    "group_of_batches_rolls_like_single_ones": "roll",
    "batches_are_written_separately_if_the_group_does_not_fit": "alone",
    "follower_appends_whole_batches_unchanged": "follow",
    "segment_span_is_limited_by_its_index": "far",
    "copy_begins_with_the_batch_of_its_start_offset": "within",
    "damage_is_copied_unchanged": "damage",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_followers(tmp_path, scene):
    play("log_followers", tmp_path, scene)
