"""Reads, time lookups and epoch lookups of a log, with and without faults."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "range_ends_with_the_last_fitting_batch": "borders",
    "range_begins_with_the_batch_of_the_offset": "within",
    "range_ends_at_the_readers_limit": "bounds",
    "sequential_reader_is_recognised": "hints",
    "remaining_bytes_are_counted": "bytes",
    "failed_read_reports_the_reason": "fail",
    "incomplete_read_takes_the_disk_offline": "ranges",
    "cached_pages_are_read_without_the_disk": "cached",
    "first_record_of_a_timestamp_is_found": "times",
    "each_record_has_its_timestamp": "records",
    "epoch_ends_at_the_start_of_the_next": "epochs",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_reads(tmp_path, scene):
    play("log_reads", tmp_path, scene, played=("preadv2",))
