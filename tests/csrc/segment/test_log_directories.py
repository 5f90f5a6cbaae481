"""A log directory: faults, small files, free space, removals, damage."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "a_shortage_is_counted_and_any_other_error_ends_the_directory_once": "shortages",
    "a_failure_without_a_reason_is_one_of_the_disk": "errno",
    "a_small_file_is_read_whole_or_not_at_all": "read",
    "a_small_file_is_replaced_whole_or_not_at_all": "write",
    "a_file_is_tried_once_more_when_descriptors_are_short": "open",
    "a_directory_that_cannot_be_synced_is_offline": "sync",
    "room_is_measured_again_before_the_last_quarter_goes": "room",
    "what_was_refused_is_refused_until_there_is_room_for_it": "large",
    "removals_wait_in_the_order_of_their_time": "order",
    "a_start_removes_what_was_being_deleted_and_nothing_else": "sweep",
    "a_directory_that_cannot_be_opened_says_why": "new",
    "removals_and_waiters_need_not_wait_for_the_flushers_next_round": "wake",
    "the_flusher_sleeps_until_the_next_removal_is_due": "sleep",
    "damages_are_told_once_oldest_first_and_all_are_counted": "damages",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_directories(tmp_path, scene):
    play("log_directories", tmp_path, scene, played=("pthread_cond_timedwait",))
