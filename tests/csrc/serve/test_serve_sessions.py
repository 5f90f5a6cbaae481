"""Fetch sessions: changed partitions, their order, and the end of sessions (serve_sessions.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

SCENES = {
    "session_response_contains_only_changes": "news",
    "partitions_with_data_move_to_the_end_of_the_session": "turns",
    "forgotten_partitions_leave_the_session": "forgotten",
    "session_is_closed_by_its_client_only": "ended",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_sessions(tmp_path, scene):
    play_watched("serve_sessions", SERVE, tmp_path / "data", scene, played=CACHE)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_sessions_of_wide_fetches(tmp_path, scene):
    play_watched("serve_sessions", SERVE, tmp_path / "data", scene, "apart", played=CACHE)
