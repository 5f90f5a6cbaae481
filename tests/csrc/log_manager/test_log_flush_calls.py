"""Flushes, call by call: of one log, of all logs of a directory, by the flusher."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "flush_syncs_contents_before_names_once": "all",
    "flush_handles_more_segments_than_one_round": "segments",
    "flush_closes_surplus_files": "open",
    "failed_sync_is_not_retried": "fail",
    "failed_name_sync_takes_the_directory_offline": "names",
    "failed_index_sync_takes_the_directory_offline": "indexes",
    "unwritable_small_files_hold_the_recovery_point": "hold",
    "unwritable_indexes_wait_for_the_next_flush": "room",
    "few_logs_are_synced_individually": "few",
    "many_logs_are_synced_together": "many",
    "logs_are_synced_individually_if_syncfs_is_unreliable": "each",
    "stop_closes_all_logs": "settle",
    "flusher_handles_each_requesting_log_once": "asked",
    "flusher_syncs_large_groups_together": "large",
    "too_many_open_files_cause_one_sync_and_close": "crowd",
    "error_of_one_of_two_syncs_fails_both": "both",
    "directory_failure_wakes_all_waiters": "failed",
    "requested_flushes_are_soon_and_rejected_ones_later": "soon",
    "removals_run_when_due_or_space_is_short": "due",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_flush_calls(tmp_path, scene):
    play("log_flush_calls", tmp_path, scene)
