"""Flushes, call by call: of one log, of all logs of a directory, by the flusher."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "a_flush_brings_contents_then_names_to_disk_and_nothing_twice": "all",
    "a_flush_brings_more_segments_to_disk_than_one_round_takes": "segments",
    "a_flush_closes_files_that_were_too_many": "open",
    "a_sync_that_failed_is_not_tried_again": "fail",
    "names_that_cannot_be_synced_end_the_directory": "names",
    "indexes_that_cannot_be_synced_end_the_directory": "indexes",
    "small_files_without_room_hold_the_recovery_point": "hold",
    "indexes_without_room_wait_for_the_next_flush": "room",
    "few_logs_are_synced_one_by_one": "few",
    "many_logs_are_synced_at_once": "many",
    "each_log_is_synced_where_one_sync_tells_nothing": "each",
    "a_stop_closes_all_logs": "settle",
    "the_flusher_takes_each_log_that_asked_once": "asked",
    "the_flusher_syncs_large_groups_at_once": "large",
    "where_too_many_files_are_open_all_is_synced_at_once_and_they_are_closed": "crowd",
    "what_one_of_two_syncs_was_told_of_counts_for_neither": "both",
    "all_who_wait_are_told_of_a_directory_that_failed": "failed",
    "what_is_asked_is_flushed_soon_and_what_was_refused_later": "soon",
    "removals_go_when_they_are_due_or_room_is_short": "due",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_flush_calls(tmp_path, scene):
    play("log_flush_calls", tmp_path, scene)
