"""Rejected Produce requests, and the work of io workers for Produce (serve_produces.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

PLAYED = (*CACHE, "iopool_submit", "quotas_monotonic_ns")
SCENES = {
    "rejected_batch_returns_its_reason": "refusals",
    "foreign_or_internal_partition_is_rejected": "absent",
    "acks_0_has_no_response_and_errors_disconnect": "silent",
    "each_partition_of_a_produce_has_its_own_result": "parts",
    "timestamps_follow_the_topics_type": "times",
    "worker_reencodes_batches_for_the_topics_codec": "recoded",
    "only_long_compressed_batches_go_to_a_worker": "inflated",
    "total_decompressed_size_selects_a_worker": "swollen",
    "empty_compressed_streams_go_to_a_worker": "hollow",
    "long_request_is_processed_in_slices": "slices",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_produces(tmp_path, scene):
    play_watched("serve_produces", SERVE, tmp_path / "data", scene, played=PLAYED)
