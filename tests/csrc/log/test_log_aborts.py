"""Aborted transactions of a log: which readers receive them, and their positions."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "those_that_overlap_are_told_in_the_order_of_their_beginning": "tell",
    "each_segment_has_those_whose_marker_it_holds": "segments",
    "an_entry_says_what_was_stable_behind_it": "entries",
    "a_truncation_takes_those_whose_marker_goes": "cut",
    "a_file_that_is_wrong_is_made_anew_from_the_batches": "anew",
    "a_file_without_room_holds_the_recovery_point": "fail",
    "few_are_found_among_many": "many",
    "a_bounded_list_is_whole_up_to_where_it_ends": "bound",
    "a_range_is_cut_before_a_batch": "range",
    "a_file_of_68_mb_is_read_as_any_other": "large",
    "a_file_of_68_mb_is_loaded_at_a_start": "load",
    "a_damaged_file_is_an_error_and_not_an_empty_list": "damaged",
    "an_abort_marker_of_any_length_is_replayed": "marker",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_aborts(tmp_path, scene):
    play("log_aborts", tmp_path, scene)
