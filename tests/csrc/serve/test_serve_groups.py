"""Produce requests of one turn that are appended as a group (serve_groups.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

PLAYED = (*CACHE, "log_dir_reserve", "log_dir_unreserve")
SCENES = {
    "produces_of_one_iteration_are_appended_together": "turns",
    "separate_append_keeps_the_order": "apart",
    "full_group_is_appended_before_the_next": "room",
    "more_logs_than_groups_are_appended_in_turn": "more_logs",
    "each_grouped_append_has_its_own_result": "errors",
    "group_without_space_is_appended_separately": "short",
    "append_of_a_disconnected_client_is_stored_without_response": "gone",
    "each_grouped_append_waits_for_its_own_replication": "acknowledged",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_groups(tmp_path, scene):
    play_watched("serve_groups", SERVE, tmp_path / "data", scene, played=PLAYED)
