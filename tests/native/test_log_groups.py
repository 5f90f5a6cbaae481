"""Group appends have the same result as single appends, with the sanitizers."""

import filecmp
import subprocess

import pytest

from tests.native.programs import LOG, SANITIZED, built

SEEDS = range(7001, 7021)
BOTH = pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])


def play(folder, sanitizer, scene, seed):
    folder.mkdir()
    program = built("log_groups", sanitizer, LOG)
    ran = subprocess.run([str(program), str(folder), scene, str(seed)],
                         capture_output=True, text=True, timeout=120, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", ""), seed


@pytest.mark.timeout(300)
def test_batches_appended_together_leave_the_files_that_one_by_one_leave(tmp_path):
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        play(folder, "address,undefined", "alike", seed)
        made = sorted(path.name for path in (folder / "apart/t-0").iterdir())
        assert sorted(path.name for path in (folder / "together/t-0").iterdir()) == made, seed
        for name in made:
            assert filecmp.cmp(folder / "apart/t-0" / name, folder / "together/t-0" / name,
                               shallow=False), (seed, name)


@pytest.mark.timeout(300)
def test_batches_of_one_producer_that_go_on_from_each_other_are_one_write(tmp_path):
    play(tmp_path / "data", "address,undefined", "writes", 1)


@BOTH
@pytest.mark.timeout(300)
def test_groups_of_several_threads_are_whole_and_in_order_for_a_reader(tmp_path, sanitizer):
    play(tmp_path / "data", sanitizer, "threads", 1)
