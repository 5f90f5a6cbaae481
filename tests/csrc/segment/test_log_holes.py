"""Damage in a log: its boundaries, and which readers skip it."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "holes_are_found_together_and_told_once": "find",
    "holes_are_forgotten_with_what_was_cut": "forget",
    "a_header_that_lies_leads_no_further_than_the_next_good_batch": "lead",
    "a_segment_may_begin_and_end_with_a_hole": "ends",
    "a_search_that_fails_is_made_again": "fail",
    "a_start_keeps_damage_below_its_recovery_point_and_cuts_it_above": "start",
    "a_truncation_takes_a_hole_that_took_its_offset": "truncate",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_holes(tmp_path, scene):
    play("log_holes", tmp_path, scene)
