"""Kafka's dump tool accepts a log after power cuts, kills, cleaning passes and moves."""

import errno
import random

import pytest

from bench import kafka
from tests.durability.history import DIE, FAIL_ONCE, NOTHING, History
from tests.native.log.test_log_against_kafka import COMPLAINTS

CONFIG = {"internal.segment.bytes": 3_000, "index.interval.bytes": 200}


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_kafka_dump_log_accepts_the_log_after_any_history(preload, ram):
    files = []
    for seed in range(12):
        files += _left(History(preload, ram / str(seed), CONFIG, seed % 2 == 0, seed), seed)
    assert len(files) > 60
    ran = kafka.run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files",
        ",".join(map(str, files)))
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-2000:]
    said = (ran.stdout + ran.stderr).lower()
    complaints = [line for line in said.splitlines() if any(word in line for word in COMPLAINTS)]
    assert complaints == []
    assert said.count("isvalid: true") > 100
    # The tool reports every aborted transaction of every index.
    assert said.count("laststableoffset: ") == sum(
        path.stat().st_size // 34 for path in files if path.suffix == ".txnindex") > 0


def _left(history, seed: int) -> list:
    dice = random.Random(seed)
    for turn in range(30):
        history.step(history.append_some, dice.randrange(8), 4, 300, turn % 5,
                     dice.randrange(-1, 3), 5)
        history.step(dice.choice([
            lambda: history.append_some(2, 3, 100, 0, dice.randrange(3), 5, True),
            lambda: history.end_transaction(dice.randrange(6), False),
            lambda: history.end_transaction(dice.randrange(6), False),
            lambda: history.end_transaction(dice.randrange(6), True),
            lambda: history.clean(1 << 20), history.move, lambda: history.flush(True),
            lambda: history.crash(True, dice.randrange(1, 1 << 30)),
            lambda: history.crash(False, 0), history.restart_clean, history.save,
            lambda: history.arm(DIE, dice.randrange(40), 0),
            lambda: history.arm(FAIL_ONCE, dice.randrange(20), errno.EIO)]))
    history.arm(NOTHING, 0, 0)
    history.step(history.append_some, 3, 4, 300, 0, -1, 5)
    history.step(history.restart_clean)
    # A lookup rebuilds an index that a cut removed. Reading backwards needs one lookup per read.
    for offset in reversed(range(history.log.start_offset, history.log.end_offset)):
        history.log.read(offset, 1)
    history.log.release()
    folder = history.disk.root / "ab"[history.place] / "t-0"
    return [path for path in sorted(folder.iterdir())
            # A power cut may leave an index without its segment; a broker ignores it.
            if path.suffix == ".snapshot" or path.suffix in (
                ".log", ".index", ".timeindex", ".txnindex") and path.with_suffix(".log").exists()]
