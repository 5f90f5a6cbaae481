"""The crash state table about the last segment of each log, which outlives its process."""

import pytest

from tests.csrc.programs import play
from tests.native.log.test_restart_checkpoint import remembered

SCENES = {
    "crash_state_is_kept_until_a_clean_stop": "find",
    "newest_entry_is_trusted_unless_the_disk_failed": "believe",
    "table_grows_and_reuses_slots": "grow",
    "slot_follows_a_renamed_file": "move",
    "unused_tables_are_removed": "sweep",
    "memory_shortage_disables_the_table": "starve",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_crash_states(tmp_path, scene):
    with remembered(tmp_path / "logs") as folder:
        play("restart_checkpoints", folder, scene)
