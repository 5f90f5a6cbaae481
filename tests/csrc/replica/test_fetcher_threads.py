"""Fetchers while partitions and connections are added and removed, with the sanitizers."""

import subprocess

import pytest

from tests.csrc.programs import SANITIZED, SERVE, built

PARTS = (*SERVE, "net/slab.c", "transport/plain_transport.c", "replica/*.c")
ROUNDS = 300


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("mode", ["cached", "flushed"])
@pytest.mark.timeout(300)
def test_concurrent_operations(tmp_path, sanitizer, mode):
    program = built("fetcher_threads", sanitizer, PARTS)
    (tmp_path / "data").mkdir()
    ran = subprocess.run([str(program), str(tmp_path / "data"), mode, str(ROUNDS)],
                         capture_output=True, text=True, timeout=200, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
