"""Recovery from the state of a log's directory after a crash."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "files_are_taken_in_order_and_what_a_crash_left_over_goes": "files",
    "what_was_flushed_is_believed_as_far_as_the_log_goes": "believe",
    "a_torn_end_is_cut_and_told": "end",
    "segments_behind_a_cut_are_dropped_and_told": "rest",
    "compaction_leaves_gaps_between_segments": "gaps",
    "a_segment_that_lost_its_end_ends_the_log": "gap",
    "a_log_that_ends_below_its_start_goes_on_from_there": "below",
    "epochs_are_those_of_the_batches": "epochs",
    "producers_are_those_of_the_newest_snapshot_and_the_batches_behind": "producers",
    "a_recovery_that_meets_a_fault_is_refused_and_may_come_again": "faults",
    "segments_that_cannot_be_listed_do_not_count_as_absent": "part",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_recovers(tmp_path, scene):
    play("log_recovers", tmp_path, scene, played=("readdir",))
