"""Fetch and Produce at their limits: quotas, many partitions, no memory (serve_limits.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

SCENES = {
    "produce_is_charged_for_bytes_and_time": "produce_quotas",
    "fetch_over_its_quota_returns_only_the_throttle_time": "fetch_quotas",
    "fetch_size_is_limited_by_its_quota": "fetch_quota_bytes",
    "fetch_quota_charges_the_whole_response": "charges",
    "waiting_wide_fetches_are_limited": "wide",
    "many_partitions_are_returned_over_several_responses": "wide_answers",
    "memory_shortage_closes_the_connection_without_leaks": "starved",
    "finished_requests_are_pooled_up_to_a_limit": "spares",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_limits(tmp_path, scene):
    play_watched("serve_limits", SERVE, tmp_path / "data", scene, played=CACHE)
