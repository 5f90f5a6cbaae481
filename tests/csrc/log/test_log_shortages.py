"""Failures to allocate memory or space below the Python interface: callers see no damage."""

import subprocess

import pytest

from tests.csrc.programs import LOG, built
from tests.fixtures.child_environment import ENVIRONMENT

SCENES = {
    "memory_shortage_is_not_reported_as_damaged_epochs": "epochs",
    "memory_shortage_is_not_reported_as_a_damaged_snapshot": "producers",
    "rejected_large_batch_does_not_block_small_ones": "room",
}


@pytest.fixture(scope="module")
def program():
    return built("log_shortages", "", LOG, "-Wl,--wrap=malloc,--wrap=realloc")


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_shortages(program, tmp_path, scene):
    ran = subprocess.run([str(program), str(tmp_path), scene], capture_output=True, text=True,
                         timeout=60, env=ENVIRONMENT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
