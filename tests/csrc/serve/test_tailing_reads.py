"""Records sent to many tailing readers, and the readers' waits, with the sanitizers."""

import subprocess

import pytest

from tests.csrc.programs import SANITIZED, SERVE, built

SCENES = {
    "readers_of_the_same_bytes_share_one_copy": "shared_copies",
    "truncated_bytes_are_never_sent_from_a_copy": "cut",
    "readers_of_a_busy_reactor_are_served_together": "gathered",
    "lagging_reader_does_not_wait": "behind",
}


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
@pytest.mark.timeout(300)
def test_tailing_readers(tmp_path, sanitizer, scene):
    program = built("tailing_reads", sanitizer, SERVE)
    ran = subprocess.run([str(program), str(tmp_path / "data"), scene],
                         capture_output=True, text=True, timeout=120, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")


def test_short_responses_wait_only_under_a_flood():
    program = built("fetch_batching_units", "address,undefined", SERVE)
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60,
                         env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
