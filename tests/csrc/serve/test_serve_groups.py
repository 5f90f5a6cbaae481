"""Produce requests of one turn that are appended as a group (serve_groups.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

PLAYED = (*CACHE, "log_reserve_space", "log_unreserve_space")
SCENES = {
    "those_of_a_turn_are_appended_together_and_answered_in_order": "turns",
    "what_goes_by_itself_goes_after_what_came_before_it": "apart",
    "a_group_that_is_full_is_appended_before_the_next_begins": "room",
    "more_logs_than_there_are_groups_are_appended_in_turns": "more_logs",
    "each_has_a_result_of_its_own": "errors",
    "without_room_for_all_each_is_tried_by_itself": "short",
    "those_whose_client_is_gone_are_appended_and_not_answered": "gone",
    "each_waits_for_its_own_records_to_be_replicated": "acknowledged",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_groups(tmp_path, scene):
    play_watched("serve_groups", SERVE, tmp_path / "data", scene, played=PLAYED)
