"""Fetches of followers and their effects, and preferred read replicas (serve_replicas.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

PLAYED = (*CACHE, "log_follower_at")
SCENES = {
    "what_a_follower_has_is_committed": "positions",
    "a_follower_that_is_refused_moves_nothing": "refusals",
    "a_position_in_what_another_leadership_cut_off_moves_nothing": "leadership",
    "a_follower_that_has_all_is_told_on_once_so_that_it_joins": "joins",
    "a_follower_with_readers_is_told_of_a_new_high_watermark_at_once": "high_is_news",
    "a_throttle_stops_only_followers_that_are_behind": "throttled",
    "a_consumer_is_sent_to_the_replica_in_its_rack_that_has_most": "racks",
    "a_follower_serves_readers_only_where_it_may": "read_from_a_follower",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_replicas(tmp_path, scene):
    play_watched("serve_replicas", SERVE, tmp_path / "data", scene, played=PLAYED)
