"""Rejected Produce requests, and the work of io workers for Produce (serve_produces.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

PLAYED = (*CACHE, "iopool_submit", "quotas_monotonic_ns")
SCENES = {
    "a_batch_that_is_refused_is_not_appended_and_is_told_why": "refusals",
    "a_partition_that_is_not_here_or_the_brokers_own_is_refused": "absent",
    "without_acknowledgement_nothing_is_answered_and_an_error_closes": "silent",
    "each_of_many_parts_has_an_answer_of_its_own": "parts",
    "times_are_the_brokers_or_what_the_records_say": "times",
    "a_worker_encodes_anew_what_the_topic_stores_otherwise": "recoded",
    "only_what_is_compressed_and_long_leaves_the_reactor": "inflated",
    "the_sum_of_inflated_bytes_decides_who_checks_a_request": "swollen",
    "streams_that_inflate_to_nothing_are_work_for_a_worker": "hollow",
    "a_long_request_is_checked_and_appended_in_slices": "slices",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_produces(tmp_path, scene):
    play_watched("serve_produces", SERVE, tmp_path / "data", scene, played=PLAYED)
