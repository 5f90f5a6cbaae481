"""A log's life in which each resource runs out once; afterwards it works as if nothing happened."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "single_descriptor_shortage_loses_nothing": "descriptors",
    "single_space_shortage_loses_nothing": "room",
    "single_rejected_truncation_loses_nothing": "cuts",
    "single_rejected_rename_loses_nothing": "names",
    "single_page_shortage_loses_nothing": "pages",
    "single_memory_shortage_loses_nothing": "memory",
    "single_failed_mkdir_loses_nothing": "folders",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_lives(tmp_path, scene):
    play("log_resource_failures", tmp_path, scene)
