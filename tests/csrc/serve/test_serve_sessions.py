"""Fetch sessions: changed partitions, their order, and the end of sessions (serve_sessions.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

SCENES = {
    "a_session_is_told_only_news": "news",
    "who_got_data_goes_last_in_the_next_answer": "turns",
    "what_a_session_forgets_is_not_answered_and_without_all_it_ends": "forgotten",
    "a_session_ends_by_its_client_and_refuses_others": "ended",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_sessions(tmp_path, scene):
    play_watched("serve_sessions", SERVE, tmp_path / "data", scene, played=CACHE)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_sessions_of_wide_fetches(tmp_path, scene):
    play_watched("serve_sessions", SERVE, tmp_path / "data", scene, "apart", played=CACHE)
