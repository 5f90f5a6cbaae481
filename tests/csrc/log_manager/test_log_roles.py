"""A log moves to another directory, gets another name, or another role."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "a_copy_has_each_byte_and_leads_once_it_is_on_disk": "copy",
    "a_copy_begins_where_its_source_does": "start",
    "damage_is_copied_and_counted": "damage",
    "a_copy_that_meets_a_fault_leaves_the_source_its_role": "faults",
    "a_name_that_cannot_be_on_disk_is_taken_back": "name",
    "a_leader_that_follows_tells_who_waits": "roles",
    "each_waiter_is_woken_when_the_end_has_passed_it": "wake",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_roles(tmp_path, scene):
    play("log_moves", tmp_path, scene)
