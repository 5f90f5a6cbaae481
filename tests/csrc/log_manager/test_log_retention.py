"""Removal of records: retention, a new log start, truncation, deletion."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "retention_by_time_removes_older_segments": "time",
    "retention_by_size_keeps_the_configured_bytes": "size",
    "retention_keeps_uncommitted_records": "high",
    "retention_works_without_space_for_a_new_segment": "room",
    "files_are_removed_in_order_until_a_failure": "files",
    "nearly_full_disk_removes_files_immediately": "short",
    "log_start_is_limited_by_the_high_watermark": "start",
    "clock_rolls_a_segment_and_requests_a_flush": "roll",
    "truncation_removes_records_from_the_offset": "truncate",
    "truncation_removes_the_batch_of_the_offset": "within",
    "failed_truncation_sync_takes_the_directory_offline": "cut",
    "truncation_without_space_can_be_retried": "unshare",
    "follower_restarts_at_its_leaders_start": "restart",
    "deleted_log_is_renamed_and_wakes_waiters": "delete",
    "name_of_a_deleted_log_contains_its_partition": "names",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_upkeeps(tmp_path, scene):
    play("log_retention", tmp_path, scene)
