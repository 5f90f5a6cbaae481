"""Conditions for a Produce response: coordinator, replicas, disk (serve_acknowledgements.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

SCENES = {
    "a_transactions_first_batch_waits_for_its_coordinator": "transactions",
    "a_request_has_one_producer": "one_producer",
    "what_is_verified_before_is_not_asked_about_until_the_marker": "verified_before",
    "an_open_transaction_is_for_whom_the_coordinator_was_asked": "verified_for_another",
    "a_coordinator_is_asked_again_once_rights_have_changed": "verified_under_other_rights",
    "a_batch_without_an_epoch_is_never_verified_before": "verified_without_epoch",
    "a_transactional_batch_of_an_old_epoch_is_not_asked_about": "transactions_refused",
    "replicas_that_are_lost_are_told_before_and_after_the_append": "replicas",
    "a_leader_that_was_another_meanwhile_acknowledges_nothing": "resigned",
    "a_leader_that_is_alone_acknowledges_what_is_on_its_disk": "flushed",
    "what_would_open_a_file_waits_while_too_many_are_open": "files",
    "what_waits_for_a_partition_that_fails_is_told_so": "failed",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_acknowledgements(tmp_path, scene):
    play_watched("serve_acknowledgements", SERVE, tmp_path / "data", scene, played=CACHE)
