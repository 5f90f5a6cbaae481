"""Appends, call by call: rolls, full disks, results, wake-ups."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "segment_rolls_at_the_configured_size": "bytes",
    "segment_rolls_at_the_configured_age": "time",
    "segment_without_timestamps_rolls_by_file_age": "timeless",
    "segment_rolls_before_its_indexes_are_full": "index",
    "failed_roll_keeps_the_last_segment": "made",
    "partial_writes_complete_a_batch": "write",
    "long_batch_is_written_in_chunks": "pieces",
    "torn_write_is_truncated": "back",
    "failed_write_takes_the_disk_offline": "fail",
    "closed_file_is_reopened_for_an_append": "open",
    "append_returns_offsets_and_is_counted": "answer",
    "duplicate_batch_returns_its_first_result": "again",
    "transaction_continues_only_after_the_verified_marker": "verify",
    "append_wakes_waiters_of_the_end_offset": "wake",
    "unflushed_records_stay_above_the_high_watermark_if_configured": "hide",
    "flush_is_requested_at_the_configured_limit": "ask",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_appends(tmp_path, scene):
    play("log_appends", tmp_path, scene)
