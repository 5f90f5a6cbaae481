"""Group appends have the same result as single appends, with the sanitizers."""

import filecmp
import subprocess

import pytest

from tests.csrc.programs import LOG, SANITIZED, built

SEEDS = range(7001, 7021)
BOTH = pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])


def play(folder, sanitizer, scene, seed):
    folder.mkdir()
    program = built("log_groups", sanitizer, LOG)
    ran = subprocess.run([str(program), str(folder), scene, str(seed)],
                         capture_output=True, text=True, timeout=120, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", ""), seed


@pytest.mark.timeout(300)
def test_group_append_and_single_appends_write_the_same_files(tmp_path):
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        play(folder, "address,undefined", "alike", seed)
        made = sorted(path.name for path in (folder / "apart/t-0").iterdir())
        assert sorted(path.name for path in (folder / "together/t-0").iterdir()) == made, seed
        for name in made:
            assert filecmp.cmp(folder / "apart/t-0" / name, folder / "together/t-0" / name,
                               shallow=False), (seed, name)


@pytest.mark.timeout(300)
def test_consecutive_batches_of_one_producer_are_one_write(tmp_path):
    play(tmp_path / "data", "address,undefined", "writes", 1)


@BOTH
@pytest.mark.timeout(300)
def test_readers_see_group_appends_of_several_threads_in_order(tmp_path, sanitizer):
    play(tmp_path / "data", sanitizer, "threads", 1)
