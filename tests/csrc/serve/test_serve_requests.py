"""Waiting and parked Produce and Fetch requests while their objects change, with sanitizers."""

import subprocess

import pytest

from tests.csrc.programs import SANITIZED, SERVE, built

SCENES = {
    "a_produce_that_was_parked_lets_go_of_a_topic_that_was_deleted": "parked",
    "a_produce_that_was_parked_goes_to_the_topic_that_has_the_name_now": "replaced",
    "a_produce_whose_grant_is_void_again_asks_anew_and_at_last_gives_up": "voided",
    "a_produce_that_waits_for_replicas_is_answered_at_its_deadline": "timed_out",
    "a_produce_that_waits_for_the_disk_is_answered_at_its_deadline": "timed_out_on_disk",
    "a_produce_whose_client_is_gone_leaves_no_waiter_behind": "abandoned",
    "a_reader_of_committed_records_is_woken_by_the_end_of_a_transaction": "committed",
    "a_reader_is_woken_when_the_leader_is_the_only_replica_in_sync": "alone_at_last",
    "a_read_from_the_disk_outlives_the_client_that_asked_for_it": "abandoned_amid_a_read",
    "produces_of_one_turn_are_appended_together_and_in_order": "queued",
    "more_of_them_than_a_group_takes_are_appended_in_order_too": "queued_many",
    "a_fetch_that_ends_early_or_names_too_many_partitions_closes_the_connection": "illegal",
    "an_answer_longer_than_a_frame_can_say_fails": "too_long",
    "a_partition_on_a_failed_disk_is_that_whatever_epoch_the_client_names": "offline",
}


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
@pytest.mark.timeout(300)
def test_waiting_requests(tmp_path, sanitizer, scene):
    program = built("serve_requests", sanitizer, SERVE)
    ran = subprocess.run([str(program), str(tmp_path / "data"), scene],
                         capture_output=True, text=True, timeout=120, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
