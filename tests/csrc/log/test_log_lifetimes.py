"""Logs are opened, copied and released while other threads flush the directory, with sanitizers."""

import subprocess

import pytest

from tests.csrc.programs import LOG, SANITIZED, built

ROUNDS = 60

SCENES = {
    "flush_during_recovery_publishes_no_unknown_end": "recovered",
    "flush_during_a_copy_publishes_no_end_above_the_copy": "followed",
    "released_log_is_not_returned": "together",
}


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
@pytest.mark.timeout(300)
def test_lifetimes(tmp_path, sanitizer, scene):
    program = built("log_lifetimes", sanitizer, LOG)
    ran = subprocess.run([str(program), str(tmp_path / "data"), scene, str(ROUNDS)],
                         capture_output=True, text=True, timeout=120, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
