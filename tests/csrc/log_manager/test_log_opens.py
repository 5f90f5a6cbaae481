"""A log is opened and closed, cleanly or not, on a failing disk."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "invalid_directory_name_is_rejected": "names",
    "incomplete_topic_id_file_is_rewritten": "metadata",
    "clean_start_trusts_its_checkpoint": "believe",
    "impossible_checkpoint_is_rejected": "doubt",
    "closed_log_stores_everything_for_a_clean_start": "close",
    "first_append_checks_the_last_segment": "adopt",
    "clean_start_keeps_stored_epochs_and_adds_a_later_one": "epochs",
    "clean_start_rebuilds_damaged_epochs_from_batches": "rebuilt_epochs",
    "first_append_rebuilds_missing_indexes": "indexes",
    "append_to_a_shared_segment_rolls": "shared",
    "failed_close_reports_an_error": "faults",
    "settings_apply_immediately": "settings",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_opens(tmp_path, scene):
    play("log_opens", tmp_path, scene)
