"""kill -9 at any point of a move between log directories: one complete copy remains."""

import signal
import subprocess
import sys
import time

import pytest

from pylog._native.records import batch
from tests.metadata.node import Node

WORK = """
import sys, threading
from pylog._native.records import batch
from pylog._native.log.log import LogError
from tests.metadata.node import Node

node, number = Node(sys.argv[1]), int(sys.argv[2])
if "t" not in node.image.topics:
    node.create("t")
print("ready", flush=True)
while True:
    node.logs.move("t", 0, 1 - node.logs.dir_index("t", 0))
    while True:
        for _ in range(20):
            number += 1
            row = (b"k", b"%d" % number + b" " * 500, node.now_ms(), ())
            try:
                node.logs.get("t", 0).append(batch.build([row]), node.now_ms())
                print(number, flush=True)
            except LogError:
                number -= 1
        if node.logs.finish_moves():
            break
"""


def _numbers(log):
    offset = log.start_offset
    while offset < log.end_offset:
        data = memoryview(log.read(offset))
        for position, header in batch.walk(data):
            yield from (int(row[3]) for row in batch.records(data[position:]))
            offset = header.base_offset + header.last_offset_delta + 1


@pytest.mark.timeout(120)
def test_every_record_survives_a_kill_in_the_middle_of_moves(tmp_path, random_source):
    dice, last = random_source, 0
    paths = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    for turn in range(6):
        child = subprocess.Popen([sys.executable, "-c", WORK, paths, str(last)],
                                 stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        end_s = time.monotonic() + dice.uniform(0.02, 0.6)
        while time.monotonic() < end_s:
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        # The kill may cut off the last line.
        for line in child.communicate()[0].split("\n")[:-1]:
            last = int(line)
        node = Node(paths)
        found = list(_numbers(node.logs.get("t", 0)))
        assert found[:last] == list(range(1, last + 1)), (turn, len(found), last)
        assert len(found) - last <= 1
        last = len(found)
        node.stop()
