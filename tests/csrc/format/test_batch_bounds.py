"""Batches at the limits of their fields, re-encoded, and without memory (batch_units.c)."""

import pytest

from tests.csrc.programs import play_watched

SCENES = {
    "header_is_parsed_to_its_limits": "parsed",
    "first_of_several_batch_errors_is_reported": "checked",
    "stamping_keeps_the_checksum_valid": "stamped",
    "marker_has_a_type_and_an_epoch": "markers",
    "records_are_found_by_timestamp": "times",
    "batch_is_reencoded_within_its_limits": "recoded",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_bounds(scene):
    play_watched("batch_units", ("format/*.c",), scene)
