"""A log moves to another directory, gets another name, or another role."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "durable_copy_is_identical_and_leads": "copy",
    "copy_begins_at_the_start_of_its_source": "start",
    "copied_damage_is_counted": "damage",
    "failed_copy_keeps_the_source_in_its_role": "faults",
    "unsynced_rename_is_reverted": "name",
    "leader_that_becomes_follower_wakes_waiters": "roles",
    "waiter_is_woken_when_the_end_passes_it": "wake",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_roles(tmp_path, scene):
    play("log_moves", tmp_path, scene)
