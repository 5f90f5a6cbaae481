"""The crash state table about the last segment of each log, which outlives its process."""

import pytest

from tests.csrc.programs import play
from tests.native.log.test_restart_checkpoint import remembered

SCENES = {
    "what_a_killed_process_left_is_found_until_a_stop_takes_it_away": "find",
    "the_newest_entry_of_a_file_is_believed_unless_the_disk_failed": "believe",
    "a_table_grows_and_gives_slots_out_again": "grow",
    "a_slot_moves_with_its_file": "move",
    "tables_that_nobody_needs_are_removed": "sweep",
    "without_memory_there_is_no_table": "starve",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_crash_states(tmp_path, scene):
    with remembered(tmp_path / "logs") as folder:
        play("log_crash_states", folder, scene)
