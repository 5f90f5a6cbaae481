"""Client quotas: rates over sliding samples, shared quotas, and expiry (quotas_units.c)."""

import pytest

from tests.csrc.programs import play_watched

SCENES = {
    "a_rate_is_spread_over_the_windows_that_passed": "spread",
    "a_steady_stream_is_over_by_the_same_time_again_and_again": "streams",
    "a_wait_is_rounded_and_has_an_end": "rounded",
    "a_window_that_there_is_no_memory_for_adds_to_the_one_before": "coarse",
    "a_fetch_that_is_over_is_not_counted_but_passes_when_it_never_could": "fetches",
    "clients_of_one_entity_share_its_rate": "shared",
    "a_client_is_what_was_installed_last_and_nothing_after_a_change": "installed",
    "waits_are_summed_by_client_id": "summed",
    "clients_that_nobody_holds_go_when_they_are_many": "swept",
    "rates_are_kept_while_they_say_something": "kept",
    "what_there_is_no_memory_for_is_not_installed": "starved",
    "connections_are_limited_by_address": "addresses",
    "addresses_that_come_no_more_are_forgotten": "forgotten",
    "time_is_the_systems": "clock",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_quotas(scene):
    play_watched("quotas_units", ("tables/quotas.c",), scene)
