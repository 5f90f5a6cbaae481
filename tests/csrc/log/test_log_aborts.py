"""Aborted transactions of a log: which readers receive them, and their positions."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "overlapping_aborted_transactions_are_ordered_by_start": "tell",
    "each_segment_lists_aborts_of_its_markers": "segments",
    "entry_contains_the_last_stable_offset": "entries",
    "truncation_removes_aborts_with_their_markers": "cut",
    "damaged_abort_file_is_rebuilt_from_batches": "anew",
    "unwritable_abort_file_holds_the_recovery_point": "fail",
    "few_aborts_are_found_among_many": "many",
    "limited_list_is_complete_up_to_its_end": "bound",
    "range_is_cut_at_a_batch_boundary": "range",
    "abort_file_of_68_mb_is_read": "large",
    "abort_file_of_68_mb_is_loaded_at_the_start": "load",
    "damaged_abort_file_is_an_error": "damaged",
    "abort_markers_of_any_length_are_replayed": "marker",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_aborts(tmp_path, scene):
    play("log_aborts", tmp_path, scene)
