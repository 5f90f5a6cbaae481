"""Removal of records: retention, a new log start, truncation, deletion."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "retention_by_time_takes_segments_that_are_older_than_the_setting": "time",
    "retention_by_size_keeps_as_much_as_the_setting_says": "size",
    "retention_takes_nothing_that_is_not_committed": "high",
    "retention_goes_on_without_room_for_a_new_segment": "room",
    "files_go_in_their_order_and_one_that_stays_ends_it": "files",
    "files_go_at_once_when_the_disk_is_nearly_full": "short",
    "a_start_moves_up_to_the_high_watermark": "start",
    "a_segment_rolls_by_the_clock_and_a_flush_is_asked_for": "roll",
    "a_truncation_takes_what_is_at_and_above_the_offset": "truncate",
    "a_truncation_takes_the_batch_that_holds_the_offset": "within",
    "a_truncation_that_cannot_be_on_disk_ends_the_directory": "cut",
    "a_truncation_that_finds_no_room_can_be_tried_again": "unshare",
    "a_follower_begins_anew_where_its_leader_does": "restart",
    "a_deleted_log_has_another_name_at_once_and_wakes_all": "delete",
    "the_name_of_a_deleted_log_says_which_it_was": "names",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_upkeeps(tmp_path, scene):
    play("log_upkeeps", tmp_path, scene)
