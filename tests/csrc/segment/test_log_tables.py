"""The log's tables: leader epochs, producers, keys, index entries, names and error codes."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "an_epoch_takes_the_place_of_those_that_begin_with_it_or_are_newer": "assign",
    "epochs_are_cut_at_both_ends": "cut",
    "an_epoch_file_is_read_whole_or_not_at_all": "read",
    "a_producer_goes_on_where_it_was_and_is_told_of_its_last_five": "follow",
    "the_next_batch_of_a_producer_goes_on_from_one_that_is_not_remembered_yet": "on",
    "a_marker_ends_the_transaction_of_its_producer": "end",
    "the_oldest_open_transaction_is_known_after_each_change": "open",
    "producers_are_found_among_many_and_forgotten_in_time": "grow",
    "batches_before_a_snapshot_are_recalled": "recall",
    "keys_have_the_hash_of_the_published_function": "hash",
    "a_map_that_is_full_takes_no_new_key": "map",
    "names_of_files_tell_offsets_that_a_log_can_have": "names",
    "each_error_has_kafkas_code": "codes",
    "entries_of_an_index_rise": "judge",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_tables(tmp_path, scene):
    play("log_tables", tmp_path, scene)
