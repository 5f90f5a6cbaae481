"""A read of data outside the page cache leaves the page cache unchanged."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "what_a_reader_brought_in_is_forgotten_once_it_has_gone": "read",
    "where_it_goes_on_the_cache_is_not_read_for_others": "next",
    "what_is_appended_while_it_reads_stays": "appended",
    "what_was_resident_before_it_came_stays": "resident",
    "where_the_kernel_cannot_tell_nothing_is_forgotten": "silent",
    "a_read_while_all_streams_are_busy_keeps_no_reference": "busy",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_cold(tmp_path, scene):
    play("log_cold", tmp_path, scene, played=("syscall", "posix_fadvise"))
