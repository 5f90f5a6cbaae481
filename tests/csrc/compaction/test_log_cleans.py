"""Compaction of a log, call by call: retained records, and the state after a fault."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "what_is_dirty_and_old_enough_is_told_by_segments": "look",
    "a_pass_keeps_the_newest_record_of_each_key_and_counts": "one",
    "a_pass_in_steps_keeps_the_same": "steps",
    "neighbours_that_fit_one_segment_are_joined": "join",
    "a_map_that_is_full_ends_the_pass_before_the_batch": "map",
    "a_tombstone_goes_when_its_time_is_over": "bury",
    "a_segment_keeps_its_last_batch_though_nothing_is_left_of_it": "end",
    "a_segment_of_which_all_stays_is_left_alone": "leave",
    "a_pass_waits_for_transactions_and_begins_with_all_it_needs": "wait",
    "a_pass_ends_with_its_log": "deleted",
    "damage_stays_byte_for_byte": "damage",
    "a_pass_ends_when_the_log_was_changed_below_it": "refuse",
    "a_pass_that_met_a_shortage_is_made_again": "short",
    "a_pass_without_memory_leaves_the_log_as_it_was": "starved",
    "a_start_after_a_pass_that_failed_finds_the_newest_of_each_key": "broken",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_cleans(tmp_path, scene):
    play("log_cleans", tmp_path, scene)
