"""JSON paths and searches at their limits, with the sanitizers (search_units.c)."""

import pytest

from tests.csrc import scenes
from tests.csrc.programs import built

PROGRAM = "search_units"
PARTS = ("format/*.c", "columns/columns.c", "columns/columns_source.c", "columns/json_path.c",
         "columns/search.c")


@pytest.mark.parametrize("scene", scenes.names(PROGRAM))
def test_search(scene):
    scenes.play(built(PROGRAM, "address,undefined", PARTS), scene)
