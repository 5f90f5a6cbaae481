"""Appends, call by call: rolls, full disks, results, wake-ups."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "a_segment_takes_as_many_bytes_as_its_setting_says": "bytes",
    "a_segment_takes_records_of_as_long_a_time_as_its_setting_says": "time",
    "a_segment_of_records_without_a_time_goes_by_its_age": "timeless",
    "a_segment_ends_before_its_indexes_are_full": "index",
    "a_segment_that_cannot_be_followed_stays_the_last": "made",
    "a_batch_is_written_whole_over_several_calls": "write",
    "a_long_batch_is_written_in_pieces": "pieces",
    "a_torn_write_is_cut_off_again": "back",
    "a_disk_that_fails_a_write_is_offline": "fail",
    "a_file_that_was_closed_meanwhile_is_opened_again": "open",
    "an_append_is_answered_with_its_offsets_and_counted": "answer",
    "a_batch_that_is_there_already_is_answered_as_the_first_time": "again",
    "a_transaction_goes_on_only_after_the_marker_that_its_coordinator_knew": "verify",
    "an_append_wakes_those_whose_end_it_moved": "wake",
    "unflushed_records_stay_above_the_high_watermark_where_the_setting_says_so": "hide",
    "a_flush_is_asked_for_when_as_much_is_not_on_disk_as_the_setting_says": "ask",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_appends(tmp_path, scene):
    play("log_appends", tmp_path, scene)
