"""Compaction of a log, call by call: retained records, and the state after a fault."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "dirty_and_old_segments_are_reported": "look",
    "pass_keeps_the_newest_record_per_key": "one",
    "pass_in_steps_has_the_same_result": "steps",
    "adjacent_small_segments_are_merged": "join",
    "full_key_map_ends_the_pass_before_a_batch": "map",
    "tombstone_is_removed_after_its_retention": "bury",
    "segment_keeps_its_empty_last_batch": "end",
    "fully_retained_segment_is_not_rewritten": "leave",
    "pass_waits_for_open_transactions": "wait",
    "closed_log_ends_the_pass": "deleted",
    "pass_copies_damage_unchanged": "damage",
    "changed_log_ends_the_pass": "refuse",
    "pass_is_retried_after_a_shortage": "short",
    "memory_shortage_leaves_the_log_unchanged": "starved",
    "start_after_a_failed_pass_finds_the_newest_records": "broken",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_cleans(tmp_path, scene):
    play("log_compaction", tmp_path, scene)
