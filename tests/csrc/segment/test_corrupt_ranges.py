"""Damage in a log: its boundaries, and which readers skip it."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "holes_are_found_and_reported_once": "find",
    "truncation_removes_holes": "forget",
    "wrong_header_skips_only_to_the_next_good_batch": "lead",
    "segment_can_begin_and_end_with_a_hole": "ends",
    "failed_hole_search_is_repeated": "fail",
    "start_keeps_damage_below_the_recovery_point_only": "start",
    "truncation_removes_a_hole_at_its_offset": "truncate",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_holes(tmp_path, scene):
    play("corrupt_ranges", tmp_path, scene)
