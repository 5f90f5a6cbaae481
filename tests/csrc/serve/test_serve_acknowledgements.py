"""Conditions for a Produce response: coordinator, replicas, disk (serve_acknowledgements.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

SCENES = {
    "first_batch_of_a_transaction_waits_for_its_coordinator": "transactions",
    "request_must_have_one_producer": "one_producer",
    "verified_partition_is_not_verified_again_until_the_marker": "verified_before",
    "verification_applies_to_one_producer": "verified_for_another",
    "permission_change_causes_a_new_verification": "verified_under_other_rights",
    "batch_without_an_epoch_is_not_verified_in_advance": "verified_without_epoch",
    "batch_of_an_old_epoch_is_rejected_without_verification": "transactions_refused",
    "lost_replicas_are_reported_before_and_after_the_append": "replicas",
    "leader_change_prevents_acknowledgement": "resigned",
    "single_replica_acknowledges_flushed_records": "flushed",
    "requests_wait_while_too_many_files_are_open": "files",
    "waiters_of_a_failed_partition_get_an_error": "failed",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_acknowledgements(tmp_path, scene):
    play_watched("serve_acknowledgements", SERVE, tmp_path / "data", scene, played=CACHE)
