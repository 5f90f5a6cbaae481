"""Waiting and parked Produce and Fetch requests while their objects change, with sanitizers."""

import subprocess

import pytest

from tests.csrc.programs import SANITIZED, SERVE, built

SCENES = {
    "parked_produce_releases_a_deleted_topic": "parked",
    "parked_produce_is_stored_in_the_recreated_topic": "replaced",
    "produce_with_repeatedly_voided_grants_fails": "voided",
    "produce_waiting_for_replicas_times_out": "timed_out",
    "produce_waiting_for_the_disk_times_out": "timed_out_on_disk",
    "produce_of_a_disconnected_client_leaves_no_waiter": "abandoned",
    "transaction_end_wakes_read_committed_fetches": "committed",
    "shrunk_isr_wakes_waiting_fetches": "alone_at_last",
    "cold_read_survives_its_clients_disconnect": "abandoned_amid_a_read",
    "produces_of_one_turn_are_appended_together_and_in_order": "queued",
    "produces_beyond_one_group_keep_their_order": "queued_many",
    "truncated_or_oversized_fetch_closes_the_connection": "illegal",
    "response_above_the_frame_limit_fails": "too_long",
    "failed_disk_error_precedes_epoch_errors": "offline",
}


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
@pytest.mark.timeout(300)
def test_waiting_requests(tmp_path, sanitizer, scene):
    program = built("serve_requests", sanitizer, SERVE)
    ran = subprocess.run([str(program), str(tmp_path / "data"), scene],
                         capture_output=True, text=True, timeout=120, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
