"""Aborted transactions of a log: who is told of them, and where they are."""

import pytest

from tests.native.programs import play

SCENES = {
    "those_that_overlap_are_told_in_the_order_of_their_beginning": "tell",
    "each_segment_has_those_whose_marker_it_holds": "segments",
    "an_entry_says_what_was_stable_behind_it": "entries",
    "a_truncation_takes_those_whose_marker_goes": "cut",
    "a_file_that_is_wrong_is_made_anew_from_the_batches": "anew",
    "a_file_without_room_holds_the_recovery_point": "fail",
    "few_are_found_among_many": "many",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_aborts(tmp_path, scene):
    play("log_aborts", tmp_path, scene)
