"""One segment: its descriptor, preallocated space, truncation, reads and scans."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "who_opens_a_segment_looks_at_few_that_wait_for_the_disk": "looks",
    "descriptors_at_rest_are_closed_in_the_order_of_their_use": "few",
    "a_segment_that_was_closed_is_opened_again_and_a_new_one_takes_its_name": "again",
    "room_is_taken_ahead_in_pieces_that_grow_with_the_segment": "ahead",
    "room_that_is_not_there_is_not_taken": "none",
    "a_trim_takes_what_lies_behind_the_bytes": "trim",
    "a_cut_is_on_disk_when_it_returns": "cut",
    "a_cut_of_a_file_that_a_branch_has_leaves_that_to_the_branch": "shared",
    "a_read_is_whole_or_an_error": "read",
    "a_scan_sees_every_header_whatever_its_window_holds": "scan",
    "a_scan_ends_where_no_whole_batch_begins": "ends",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_segments(tmp_path, scene):
    play("log_segments", tmp_path, scene)
