"""A log is opened and closed, cleanly or not, on a failing disk."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "a_name_that_no_directory_can_have_is_refused": "names",
    "the_topic_id_is_written_once_and_again_when_it_is_not_whole": "metadata",
    "a_clean_start_believes_its_checkpoint_and_asks_no_disk": "believe",
    "a_checkpoint_that_cannot_be_is_refused": "doubt",
    "a_closed_log_has_all_that_a_clean_start_wants": "close",
    "the_first_append_holds_the_last_segment_against_the_checkpoint": "adopt",
    "a_clean_start_keeps_the_epochs_of_the_file_and_adds_a_later_one": "epochs",
    "a_clean_start_reads_missing_or_damaged_epochs_from_the_batches": "rebuilt_epochs",
    "the_first_append_makes_missing_indexes_anew": "indexes",
    "a_segment_that_a_branch_has_too_is_followed_by_another": "shared",
    "a_close_that_cannot_write_all_says_so": "faults",
    "settings_hold_from_the_moment_they_are_set": "settings",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_opens(tmp_path, scene):
    play("log_opens", tmp_path, scene)
