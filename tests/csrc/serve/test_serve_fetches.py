"""The size of a fetch, its waits, and reads from disk before it (serve_fetches.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

PLAYED = (*CACHE, "log_range_warm", "iopool_submit", "log_wait")
SCENES = {
    "response_size_obeys_all_limits": "bytes",
    "fetch_waits_for_min_bytes_until_its_deadline": "waits",
    "end_offset_change_before_waiting_is_noticed": "moved_meanwhile",
    "fetch_waits_for_the_high_watermark": "waits_for_replicas",
    "unknown_partition_is_looked_up_once": "rights",
    "permission_change_during_a_wait_is_checked_again": "voided",
    "cold_data_is_read_by_a_free_worker": "cold",
    "short_cold_read_waits_for_more": "cold_and_little",
    "aborted_records_of_a_removed_file_are_not_returned": "gone_meanwhile",
    "range_with_too_many_aborted_transactions_is_cut": "many_aborted",
    "wide_fetch_is_served_by_a_worker": "wide",
    "range_with_too_many_overlapping_aborts_is_read_to_its_end": "many_open",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_fetches(tmp_path, scene):
    play_watched("serve_fetches", SERVE, tmp_path / "data", scene, played=PLAYED)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scene", ["bytes", "waits", "moved_meanwhile", "waits_for_replicas",
                                   "rights", "voided", "many_aborted"])
def test_workers_answer_wide_fetches_like_reactors(tmp_path, scene):
    play_watched("serve_fetches", SERVE, tmp_path / "data", scene, "apart", played=PLAYED)
