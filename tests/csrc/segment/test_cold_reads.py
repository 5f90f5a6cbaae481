"""A read of data outside the page cache leaves the page cache unchanged."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "pages_of_a_finished_cold_read_are_dropped": "read",
    "continuing_cold_read_uses_no_shared_cache": "next",
    "data_appended_during_a_cold_read_stays_cached": "appended",
    "previously_cached_pages_stay_cached": "resident",
    "nothing_is_dropped_without_residency_information": "silent",
    "cold_read_beyond_the_stream_limit_keeps_no_reference": "busy",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_cold(tmp_path, scene):
    play("cold_reads", tmp_path, scene, played=("syscall", "posix_fadvise"))
