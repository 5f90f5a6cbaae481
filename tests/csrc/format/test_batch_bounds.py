"""Batches at the limits of their fields, re-encoded, and without memory (batch_units.c)."""

import pytest

from tests.csrc.programs import play_watched

SCENES = {
    "a_header_is_parsed_to_its_bounds": "parsed",
    "of_several_faults_of_a_producers_batch_the_first_is_said": "checked",
    "stamps_keep_the_checksum_right": "stamped",
    "a_marker_says_its_type_and_its_epoch_or_is_none": "markers",
    "records_are_found_by_their_times": "times",
    "a_batch_is_encoded_anew_within_its_limits": "recoded",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_bounds(scene):
    play_watched("batch_units", ("format/*.c",), scene)
