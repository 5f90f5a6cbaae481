"""kill -9 at any point of a cleaning pass: the last record of each key survives."""

import os
import signal
import subprocess
import sys
import time

import pytest

from pylog._native.log import log
from tests.native.log.test_compaction import CONFIG, content
from tests.native.log.test_log import NOW, TOPIC_ID

WORK = """
import random, sys
from pylog._native.log import compaction as cleaner, log
from pylog._native.records import batch
from tests.native.log.test_compaction import CONFIG
from tests.native.log.test_log import NOW, TOPIC_ID

path, seed, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(seed)
one = log.Log.open(log.LogDir(path, 2), "t", 0, TOPIC_ID, CONFIG, now_ms=NOW)
one.become_leader(0)
end = 0
print("ready", flush=True)
while True:
    for _ in range(60):
        number += 1
        row = (b"%d" % dice.randrange(20), b"%d" % number + b" " * dice.randrange(300), NOW, [])
        one.append(batch.build([row], codec=dice.randrange(5)), NOW)
        print(row[0].decode(), number, flush=True)
    one_pass = cleaner.CleaningPass(one, cleaner.OffsetMap(1 << 16), now_ms=NOW, first_dirty=end,
                                    delete_retention_ms=0, segment_bytes=4000)
    while one_pass.step(dice.randrange(1, 3000)):
        pass
    end = (one_pass.figures() or {"end_offset": end})["end_offset"]
    one_pass.close()
"""


@pytest.mark.timeout(120)
def test_newest_record_of_each_key_survives(tmp_path, random_source):
    seed = random_source.randrange(1 << 32)
    dice, newest, last = random_source, {}, 0
    for turn in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", WORK, str(tmp_path), str(seed + turn), str(last)],
            stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        os.set_blocking(child.stdout.fileno(), True)
        timer_s = dice.uniform(0.02, 0.4)
        end_s = time.monotonic() + timer_s
        while time.monotonic() < end_s:
            key, number = child.stdout.readline().split()
            newest[key] = last = int(number)
        child.send_signal(signal.SIGKILL)
        # The kill may cut off the last line.
        for line in child.communicate()[0].split("\n")[:-1]:
            key, number = line.split()
            newest[key] = last = int(number)
        one = log.Log.open(log.LogDir(tmp_path, 2), "t", 0, TOPIC_ID, CONFIG, now_ms=NOW)
        found = {}
        for _, key, value in content(one):
            found[key.decode()] = int(value)
        for key, number in newest.items():
            assert found[key] >= number, (turn, key)
        last += 1000
        left = [path.name for path in (tmp_path / "t-0").iterdir()
                if path.suffix in (".swap", ".cleaned")]
        assert not left
        one.release()
