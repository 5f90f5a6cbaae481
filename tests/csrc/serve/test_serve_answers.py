"""Fetch and Produce of each version, and their responses byte by byte (serve_answers.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

SCENES = {
    "a_fetch_of_each_version_is_answered_as_its_version_says": "fetch_versions",
    "a_fetch_is_told_where_its_history_parts_from_the_logs": "epochs",
    "each_leader_that_an_answer_names_is_reached_where_the_listener_has_it": "endpoints",
    "a_produce_of_each_version_is_answered_as_its_version_says": "produce_versions",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_answers(tmp_path, scene):
    play_watched("serve_answers", SERVE, tmp_path / "data", scene, played=CACHE)
