"""The exactly-once sink when Spark runs several attempts of the same task at the same time."""

import subprocess
import sys

import pytest

from spark.session import CHECKOUT
from tests.client.reading import await_markers, new_topic, read_topic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
FILES, LINES, PARTITIONS = 2, 40, 2


def committed_values(bootstrap, topic):
    await_markers(bootstrap, topic, PARTITIONS)
    found = read_topic(bootstrap, topic, PARTITIONS)
    return sorted(row[2].decode() for rows in found.values() for row in rows)


def run(kind, master, target, directory):
    """Return the values that a driver has written, and all lines."""
    (directory / "lines").mkdir()
    lines = [f"{number}-{line:02}" for number in range(FILES) for line in range(LINES)]
    for number in range(FILES):
        (directory / "lines" / f"{number}.txt").write_text(
            "\n".join(line for line in lines if line.startswith(f"{number}-")))
    topic = new_topic(target.bootstrap, PARTITIONS)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.attempts", kind, master, target.bootstrap,
         str(directory), topic],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return committed_values(target.bootstrap, topic), lines


def test_retried_stage_writes_each_record_once_while_the_first_attempt_still_runs(target, tmp_path):
    found, lines = run("stage", "local[3,8]", target, tmp_path)
    assert (tmp_path / "0-1").exists(), "the stage was not retried"
    assert found == lines


def test_speculative_task_writes_each_record_once(standalone, target, tmp_path):
    found, lines = run("speculation", standalone, target, tmp_path)
    assert (tmp_path / "1-1").exists(), "no speculative task was started"
    assert found == lines
