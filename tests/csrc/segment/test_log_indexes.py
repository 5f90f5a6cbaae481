"""A segment's indexes: entries, lookups, damage, truncation, faults."""

import pytest

from tests.csrc.programs import play

ENTRIES = {
    "a_batch_has_an_entry_when_more_than_the_interval_lies_before_it": "due",
    "a_time_has_an_entry_when_it_is_later_than_all_before": "times",
    "entries_of_the_writable_end_go_to_the_files_in_groups": "groups",
    "entries_without_room_stay_in_memory_until_they_are_twice_as_many": "room",
    "files_that_had_the_name_before_lose_what_they_held_and_branches_keep_theirs": "others",
    "a_missing_file_is_made_anew_by_who_may_wait_and_one_that_cannot_be_opened_is_kept": "missing",
    "entries_that_lie_are_found_by_whom_they_lead": "wrong",
    "an_index_without_its_last_entries_is_damaged": "short",
    "an_index_is_doubted_once": "distrust",
}
FAULTS = {
    "a_cut_takes_the_entries_above_it_from_memory": "memory",
    "a_cut_takes_the_entries_above_it_from_the_files": "files",
    "a_cut_takes_entries_from_the_files_and_from_memory": "both",
    "a_cut_leaves_a_branch_its_files": "shared",
    "a_flush_finds_all_entries_in_the_files_or_in_memory": "finish",
    "a_disk_that_cannot_read_an_index_is_offline": "probe",
    "a_disk_that_cannot_write_an_index_anew_is_offline": "fail",
    "who_may_not_wait_reads_no_pages_that_are_not_cached": "evicted",
    "without_memory_there_is_no_entry_and_nothing_else_is_missing": "starved",
}


@pytest.mark.parametrize("scene", ENTRIES.values(), ids=ENTRIES.keys())
def test_indexes(tmp_path, scene):
    play("log_indexes", tmp_path, scene)


@pytest.mark.parametrize("scene", FAULTS.values(), ids=FAULTS.keys())
def test_index_faults(tmp_path, scene):
    play("log_index_faults", tmp_path, scene)
