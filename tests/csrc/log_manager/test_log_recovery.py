"""Recovery from the state of a log's directory after a crash."""

import pytest

from tests.csrc.programs import play

SCENES = {
    "recovery_loads_segments_in_order_and_removes_leftovers": "files",
    "recovery_trusts_flushed_bytes": "believe",
    "torn_end_is_truncated_and_reported": "end",
    "segments_after_a_truncation_are_dropped_and_reported": "rest",
    "compaction_leaves_gaps_between_segments": "gaps",
    "segment_without_its_end_ends_the_log": "gap",
    "log_that_ends_below_its_start_restarts_there": "below",
    "epochs_are_recovered_from_batches": "epochs",
    "producers_are_recovered_from_snapshot_and_batches": "producers",
    "failed_recovery_can_be_repeated": "faults",
    "unlistable_segments_are_not_treated_as_absent": "part",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_recovers(tmp_path, scene):
    play("log_recovery", tmp_path, scene, played=("readdir",))
