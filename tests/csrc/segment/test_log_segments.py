"""One segment: its descriptor, preallocated space, truncation, reads and scans."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "opening_a_segment_examines_few_unsynced_ones": "looks",
    "idle_descriptors_are_closed_least_recently_used_first": "few",
    "closed_segment_is_reopened": "again",
    "preallocation_grows_with_the_segment": "ahead",
    "preallocation_fails_without_space": "none",
    "trim_removes_preallocated_space": "trim",
    "truncation_is_durable_when_it_returns": "cut",
    "truncation_of_a_shared_file_keeps_the_branchs_copy": "shared",
    "read_is_complete_or_an_error": "read",
    "scan_finds_every_header_for_any_window_size": "scan",
    "scan_ends_at_an_incomplete_batch": "ends",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_segments(tmp_path, scene):
    play("log_segments", tmp_path, scene)
