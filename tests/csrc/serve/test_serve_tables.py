"""The lookup tables of serve, and responses that grow or share copies (serve_tables.c)."""

import pytest

from tests.csrc.programs import SERVE, play_watched

PLAYED = ("log_range_read", "log_range_release", "log_range_read_cached", "segment_retain",
          "segment_release")
SCENES = {
    "an_answer_has_bytes_ranges_and_copies_up_to_its_limits": "replies",
    "what_a_second_reader_wants_is_read_once_and_forgotten_in_time": "copies",
    "each_miss_finds_its_verdict": "misses",
    "a_node_is_found_by_its_listener_and_id": "nodes",
    "the_text_of_a_scrape_grows_as_it_must": "expositions",
}


@pytest.mark.timeout(300)  # the first test builds
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_tables(scene):
    play_watched("serve_tables", SERVE, scene, played=PLAYED)
