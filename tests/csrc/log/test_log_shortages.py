"""Failures to allocate memory or space below the Python interface: callers see no damage."""

import subprocess

import pytest

from tests.csrc.programs import LOG, built
from tests.fixtures.child_environment import ENVIRONMENT

SCENES = {
    "epochs_that_there_is_no_memory_for_are_not_damaged": "epochs",
    "a_snapshot_that_there_is_no_memory_for_is_not_damaged": "producers",
    "one_large_batch_that_does_not_fit_keeps_no_small_one_away": "room",
}


@pytest.fixture(scope="module")
def program():
    return built("log_shortages", "", LOG, "-Wl,--wrap=malloc,--wrap=realloc")


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_shortages(program, tmp_path, scene):
    ran = subprocess.run([str(program), str(tmp_path), scene], capture_output=True, text=True,
                         timeout=60, env=ENVIRONMENT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
