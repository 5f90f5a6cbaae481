"""The size of a fetch, its waits, and reads from disk before it (serve_fetches.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

PLAYED = (*CACHE, "log_range_warm", "iopool_submit", "log_wait")
SCENES = {
    "an_answer_has_as_many_bytes_as_all_limits_let_it": "bytes",
    "a_fetch_waits_for_its_bytes_until_its_deadline": "waits",
    "an_end_that_moves_just_before_it_is_waited_for_is_seen": "moved_meanwhile",
    "a_fetch_of_what_replicas_lack_waits_for_just_that": "waits_for_replicas",
    "what_is_unknown_is_asked_for_once_and_hastens_nothing": "rights",
    "rights_that_end_while_a_fetch_waits_are_asked_for_anew": "voided",
    "what_is_cold_is_read_by_a_worker_where_one_is_free": "cold",
    "what_was_found_on_the_disk_and_is_too_little_waits_for_more": "cold_and_little",
    "aborted_records_whose_file_goes_meanwhile_are_not_answered": "gone_meanwhile",
    "a_range_with_too_many_aborted_transactions_is_cut": "many_aborted",
    "a_wide_fetch_leaves_the_reactor_to_others_and_is_answered_the_same": "wide",
    "a_range_with_too_many_overlapping_aborted_transactions_is_read_to_its_end": "many_open",
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
