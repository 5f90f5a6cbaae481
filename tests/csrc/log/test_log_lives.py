"""A log's life in which each resource runs out once; afterwards it works as if nothing happened."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "descriptors_that_are_short_once_lose_nothing": "descriptors",
    "room_for_writes_that_is_short_once_loses_nothing": "room",
    "cuts_that_are_refused_once_lose_nothing": "cuts",
    "names_that_are_refused_once_lose_nothing": "names",
    "pages_that_cannot_be_had_once_lose_nothing": "pages",
    "memory_that_is_short_once_loses_nothing": "memory",
    "folders_that_cannot_be_made_once_lose_nothing": "folders",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_lives(tmp_path, scene):
    play("log_lives", tmp_path, scene)
