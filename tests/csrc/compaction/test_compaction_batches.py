"""Records that compaction retains in a batch, and the aborted transactions it recognises."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "records_that_are_superseded_go_and_the_others_stay_as_they_are": "newest",
    "times_of_the_append_stay": "times",
    "records_without_a_key_go": "keys",
    "an_empty_batch_stays_as_it_is_or_goes": "empty",
    "a_tombstone_has_its_time_from_the_first_pass_on": "bury",
    "aborted_data_go": "aborted",
    "a_marker_goes_when_its_data_are_gone_and_its_time_is_over": "markers",
    "records_that_cannot_be_are_refused": "refuse",
    "a_compressed_batch_is_compressed_again": "packed",
    "keys_are_mapped_from_an_offset_on": "map",
    "without_memory_nothing_is_made": "starve",
    "a_transaction_is_aborted_from_its_first_batch_to_its_marker": "follow",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_clean_batches(tmp_path, scene):
    play("compaction_batches", tmp_path, scene)
