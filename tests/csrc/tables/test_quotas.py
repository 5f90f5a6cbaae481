"""Client quotas: rates over sliding samples, shared quotas, and expiry (quotas_units.c)."""

import pytest

from tests.csrc.programs import play_watched

SCENES = {
    "rate_covers_the_elapsed_windows": "spread",
    "steady_load_is_throttled_equally": "streams",
    "throttle_time_is_rounded_and_limited": "rounded",
    "usage_without_memory_for_a_window_joins_the_previous_one": "coarse",
    "fetch_larger_than_the_quota_passes_uncounted": "fetches",
    "clients_of_one_entity_share_its_rate": "shared",
    "quota_change_resets_installed_clients": "installed",
    "throttle_times_are_summed_by_client_id": "summed",
    "unused_clients_are_removed_above_a_limit": "swept",
    "rates_are_kept_while_they_are_relevant": "kept",
    "memory_shortage_installs_nothing": "starved",
    "connections_are_limited_by_address": "addresses",
    "inactive_addresses_are_removed": "forgotten",
    "quotas_use_the_system_clock": "clock",
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_quotas(scene):
    play_watched("quotas_units", ("tables/quotas.c",), scene)
