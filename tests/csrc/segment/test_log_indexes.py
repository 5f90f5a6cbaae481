"""A segment's indexes: entries, lookups, damage, truncation, faults."""

import pytest

from tests.csrc.programs import play

ENTRIES = {
    "batch_is_indexed_after_the_interval": "due",
    "only_increasing_timestamps_are_indexed": "times",
    "index_entries_are_written_in_groups": "groups",
    "unwritable_entries_stay_in_memory_up_to_twice_the_group": "room",
    "reused_index_files_are_truncated_but_linked_ones_kept": "others",
    "missing_index_is_rebuilt_by_blocking_callers": "missing",
    "wrong_index_entries_are_detected_by_readers": "wrong",
    "index_without_its_last_entries_is_damaged": "short",
    "damaged_index_is_reported_once": "distrust",
}
FAULTS = {
    "truncation_removes_entries_from_memory": "memory",
    "truncation_removes_entries_from_files": "files",
    "truncation_removes_entries_from_files_and_memory": "both",
    "truncation_keeps_linked_index_files": "shared",
    "flush_keeps_all_entries_in_files_or_memory": "finish",
    "failed_index_read_takes_the_disk_offline": "probe",
    "failed_index_rebuild_takes_the_disk_offline": "fail",
    "nonblocking_callers_read_only_cached_pages": "evicted",
    "memory_shortage_skips_only_the_entry": "starved",
}


@pytest.mark.parametrize("scene", ENTRIES.values(), ids=ENTRIES.keys())
def test_indexes(tmp_path, scene):
    play("log_indexes", tmp_path, scene)


@pytest.mark.parametrize("scene", FAULTS.values(), ids=FAULTS.keys())
def test_index_faults(tmp_path, scene):
    play("log_index_faults", tmp_path, scene)
