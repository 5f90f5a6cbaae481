"""Truncated and invalid requests, versions, long responses from disk, no memory (serve_bounds.c).
"""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

SCENES = {
    "a_request_that_is_cut_off_anywhere_closes_the_connection": "cut",
    "what_is_null_where_it_must_not_be_closes_the_connection": "illegal",
    "a_request_without_topics_or_partitions_is_answered": "empty",
    "only_the_versions_of_the_table_are_known": "versions",
    "what_is_cold_is_answered_in_smaller_pieces": "narrow",
    "without_memory_a_session_is_as_it_was_or_over": "starved",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_bounds(tmp_path, scene):
    play_watched("serve_bounds", SERVE, tmp_path / "data", scene, played=CACHE)
