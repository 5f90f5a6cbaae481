"""Fetch and Produce of each version, and their responses byte by byte (serve_responses.c)."""

import pytest

from tests.csrc.programs import CACHE, SERVE, play_watched

SCENES = {
    "fetch_response_matches_every_version": "fetch_versions",
    "fetch_returns_the_diverging_epoch": "epochs",
    "leader_endpoints_use_the_clients_listener": "endpoints",
    "produce_response_matches_every_version": "produce_versions",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_answers(tmp_path, scene):
    play_watched("serve_responses", SERVE, tmp_path / "data", scene, played=CACHE)
