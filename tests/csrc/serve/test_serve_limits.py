"""Fetch and Produce at their limits: quotas, many partitions, no memory (serve_limits.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

SCENES = {
    "a_produce_is_charged_for_its_bytes_and_its_time": "produce_quotas",
    "a_fetch_over_its_quota_is_told_how_long_to_wait_and_nothing_else": "fetch_quotas",
    "a_fetch_has_no_more_bytes_than_its_quota_holds": "fetch_quota_bytes",
    "records_and_what_is_around_them_are_charged": "charges",
    "fetches_of_very_many_partitions_wait_only_up_to_a_limit": "wide",
    "records_of_more_partitions_than_an_answer_has_parts_for_come_in_several": "wide_answers",
    "without_memory_a_connection_is_closed_and_nothing_stays_behind": "starved",
    "requests_that_are_over_are_kept_for_the_next_ones_up_to_a_limit": "spares",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_limits(tmp_path, scene):
    play_watched("serve_limits", SERVE, tmp_path / "data", scene, played=CACHE)
