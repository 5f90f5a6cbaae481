"""Reads, time lookups and epoch lookups of a log, with and without faults."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "a_range_ends_with_the_last_batch_that_fits": "borders",
    "a_range_begins_with_the_batch_that_holds_the_offset": "within",
    "a_range_ends_where_its_reader_may_not_read_on": "bounds",
    "a_reader_that_goes_on_is_known": "hints",
    "bytes_that_are_left_to_read_are_counted": "bytes",
    "a_read_that_fails_says_why": "fail",
    "a_range_is_read_whole_or_its_disk_is_offline": "ranges",
    "what_is_in_the_page_cache_is_read_without_a_disk": "cached",
    "the_first_record_of_a_time_is_found": "times",
    "each_record_has_its_time": "records",
    "each_epoch_ends_where_the_next_begins": "epochs",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_looks(tmp_path, scene):
    play("log_reads", tmp_path, scene, played=("preadv2",))
