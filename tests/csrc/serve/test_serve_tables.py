"""The lookup tables of serve, and responses that grow or share copies (serve_tables.c)."""

import pytest

from tests.csrc.programs import SERVE, play_watched

PLAYED = ("log_range_read", "log_range_release", "log_range_read_cached", "segment_retain",
          "segment_release")
SCENES = {
    "response_holds_bytes_ranges_and_copies_up_to_its_limits": "replies",
    "shared_tail_copy_is_read_once_and_expires": "copies",
    "each_miss_gets_its_verdict": "misses",
    "node_is_found_by_listener_and_id": "nodes",
    "scrape_text_buffer_grows": "expositions",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_tables(scene):
    play_watched("serve_tables", SERVE, scene, played=PLAYED)
