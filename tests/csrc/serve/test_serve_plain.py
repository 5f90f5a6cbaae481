"""Scenes that other tests run with sanitizers, here with release flags: no assert_slow, full speed.
"""

import pytest

from tests.csrc.programs import SERVE, built, check_ok
from tests.csrc.serve.test_serve_requests import SCENES as REQUESTS
from tests.csrc.serve.test_tailing_reads import SCENES as TAILS

pytestmark = pytest.mark.timeout(300)  # the first test builds


@pytest.mark.parametrize("scene", REQUESTS.values(), ids=REQUESTS.keys())
def test_requests(tmp_path, scene):
    check_ok(built("serve_requests", "", SERVE), tmp_path / "data", scene)


@pytest.mark.parametrize("scene", TAILS.values(), ids=TAILS.keys())
def test_tails(tmp_path, scene):
    check_ok(built("tailing_reads", "", SERVE), tmp_path / "data", scene)


def test_gathering():
    check_ok(built("fetch_batching_units", "", SERVE))


def test_sessions(random_source):
    parts = ("serve/fetch_sessions.c", "compaction/offset_map.c")
    check_ok(built("fetch_session_units", "", parts), random_source.randrange(1 << 30))
