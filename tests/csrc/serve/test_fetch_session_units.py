"""Fetch sessions alone, with sanitizers: age, slots, limits, order (fetch_session_units.c)."""

import subprocess

import pytest

from tests.csrc.net.reactor_process import SANITIZED, built


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sessions_expire_and_respect_their_limits(sanitizer, random_source):
    seed = str(random_source.randrange(1 << 30))
    ran = subprocess.run([str(built(sanitizer, "fetch_session_units")), seed], capture_output=True,
                         text=True, timeout=60, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
