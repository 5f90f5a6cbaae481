"""A log directory: faults, small files, free space, removals, damage."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "shortages_are_counted_and_other_errors_take_the_directory_offline": "shortages",
    "unknown_failure_counts_as_a_disk_error": "errno",
    "small_file_is_read_completely_or_not": "read",
    "small_file_is_replaced_atomically": "write",
    "descriptor_shortage_retries_once": "open",
    "failed_directory_sync_takes_it_offline": "sync",
    "space_is_measured_again_before_the_last_quarter": "room",
    "rejected_appends_are_rejected_until_space_is_free": "large",
    "removals_are_ordered_by_due_time": "order",
    "start_removes_only_pending_deletions": "sweep",
    "unopenable_directory_reports_the_reason": "new",
    "removals_and_waiters_wake_the_flusher": "wake",
    "the_flusher_sleeps_until_the_next_removal_is_due": "sleep",
    "damage_is_reported_once_oldest_first": "damages",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_directories(tmp_path, scene):
    play("log_directories", tmp_path, scene, played=("pthread_cond_timedwait",))
