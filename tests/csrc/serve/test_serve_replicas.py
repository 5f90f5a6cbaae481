"""Fetches of followers and their effects, and preferred read replicas (serve_replicas.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

PLAYED = (*CACHE, "log_follower_at")
SCENES = {
    "follower_fetch_advances_the_high_watermark": "positions",
    "rejected_follower_fetch_has_no_effect": "refusals",
    "position_in_truncated_records_has_no_effect": "leadership",
    "caught_up_follower_is_reported_once": "joins",
    "follower_with_readers_gets_a_new_high_watermark_immediately": "high_is_news",
    "replication_throttle_affects_only_lagging_followers": "throttled",
    "consumer_is_sent_to_the_most_complete_replica_in_its_rack": "racks",
    "follower_serves_consumers_only_if_enabled": "read_from_a_follower",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_replicas(tmp_path, scene):
    play_watched("serve_replicas", SERVE, tmp_path / "data", scene, played=PLAYED)
