"""The log's tables: leader epochs, producers, keys, index entries, names and error codes."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "epoch_replaces_newer_ones_and_those_at_its_start": "assign",
    "epochs_are_truncated_at_both_ends": "cut",
    "epoch_file_is_read_completely_or_not": "read",
    "producer_state_keeps_the_last_five_batches": "follow",
    "next_batch_continues_from_a_pending_one": "on",
    "marker_ends_its_producers_transaction": "end",
    "oldest_open_transaction_is_tracked": "open",
    "producers_are_found_and_expire": "grow",
    "batches_before_a_snapshot_are_restored": "recall",
    "key_hash_matches_the_published_function": "hash",
    "full_key_map_rejects_new_keys": "map",
    "file_names_contain_valid_offsets": "names",
    "errors_map_to_kafka_codes": "codes",
    "index_entries_increase": "judge",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_tables(tmp_path, scene):
    play("segment_tables", tmp_path, scene)
