"""A streaming query whose driver is killed with -9 repeatedly, and restarted."""

import os
import signal
import subprocess
import sys
import time

import pytest

from pylog.client import Admin, TopicPartition
from spark import cluster
from spark.session import CHECKOUT
from tests.client.reading import await_markers, read_topic
from tests.spark.copying import SINK

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]
PARTITIONS = 2
FILES, LINES = 80, 50
BATCHES = FILES // 2
KILLS = 4


def started(command, out):
    return subprocess.Popen(command, cwd=CHECKOUT, start_new_session=True, stdout=out,
                            stderr=subprocess.STDOUT)


def decided(admin, topic):
    """Return the number of batches."""
    found = admin.list_consumer_group_offsets(SINK)
    return found[TopicPartition(topic, 0)].offset if found else 0


def values(bootstrap, topic):
    await_markers(bootstrap, topic, PARTITIONS)
    found = read_topic(bootstrap, topic, PARTITIONS)
    return sorted(row[2].decode() for rows in found.values() for row in rows)


def test_each_record_is_seen_once_however_often_the_driver_is_killed(
        target, tmp_path, random_source):
    (tmp_path / "lines").mkdir()
    lines = {number: [f"{number:02}-{line:02}" for line in range(LINES)] for number in range(FILES)}
    for number, texts in lines.items():
        (tmp_path / "lines" / f"{number:02}.txt").write_text("\n".join(texts))
    cluster.create_topic({"bootstrap.servers": target.bootstrap}, "lines", PARTITIONS)
    command = [sys.executable, "-m", "tests.spark.copying", target.bootstrap,
               str(tmp_path / "lines"), "lines", str(tmp_path / "state")]
    said = tmp_path / "driver.out"
    with open(said, "wb") as out, Admin(bootstrap_servers=target.bootstrap) as admin:
        for _ in range(KILLS):
            reached = decided(admin, "lines") + random_source.randrange(1, 5)
            child = started(command, out)
            while child.poll() is None and decided(admin, "lines") < reached:
                time.sleep(0.02)
            # At a random point of the following batches.
            time.sleep(random_source.random())
            assert child.poll() is None, said.read_text()[-4000:]
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        assert 0 < decided(admin, "lines") < BATCHES, "it was done before it was killed"
        assert started(command, out).wait() == 0, said.read_text()[-4000:]
    assert values(target.bootstrap, "lines") == [text for number in lines for text in lines[number]]
