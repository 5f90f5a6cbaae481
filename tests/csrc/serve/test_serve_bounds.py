"""Truncated and invalid requests, versions, long responses from disk, no memory (serve_bounds.c).
"""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

SCENES = {
    "truncated_request_closes_the_connection": "cut",
    "invalid_null_closes_the_connection": "illegal",
    "empty_request_is_answered": "empty",
    "only_listed_versions_are_served": "versions",
    "cold_data_is_returned_in_smaller_chunks": "narrow",
    "memory_shortage_keeps_or_ends_the_session": "starved",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_bounds(tmp_path, scene):
    play_watched("serve_bounds", SERVE, tmp_path / "data", scene, played=CACHE)
