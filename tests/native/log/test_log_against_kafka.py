"""Kafka's dump tool reads the log's files: batches, both indexes and producer snapshots."""

import random

import pytest

from bench import kafka
from pylog._native.log import log
from pylog._native.records import batch
from tests.native.log.test_compaction import cleaned
from tests.native.log.test_log import NOW, opened

COMPLAINTS = ("mismatch", "not found", "isvalid: false", "corrupt", "out of order", "error")


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_kafka_dump_log_accepts_every_file(tmp_path):
    chance = random.Random(4711)
    one = opened(log.LogDir(tmp_path, 2), config={"internal.segment.bytes": 200_000})
    for i in range(300):
        if i == 150:
            one.become_leader(4)
        records = [
            (b"k%d" % k, chance.randbytes(chance.randrange(900)), NOW + 10 * i + k, [("h", b"x")])
            for k in range(chance.randrange(1, 8))
        ]
        one.append(
            batch.build(records, codec=i % 5, producer_id=5 + i, producer_epoch=0, base_sequence=0),
            NOW,
        )
    one.close(NOW)
    files = [
        str(f)
        for f in sorted((tmp_path / "t-0").iterdir())
        if f.suffix in (".log", ".index", ".timeindex", ".snapshot")
    ]
    ran = kafka.run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(files)
    )
    assert ran.returncode == 0
    said = (ran.stdout + ran.stderr).lower()
    assert not [line for line in said.splitlines() if any(word in line for word in COMPLAINTS)]
    assert said.count("isvalid: true") == 300


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_kafka_dump_log_accepts_what_the_cleaner_writes(tmp_path):
    chance = random.Random(815)
    one = opened(log.LogDir(tmp_path, 2), config={"internal.segment.bytes": 100_000,
                                                  "cleanup.policy": "compact"})
    for i in range(400):
        records = [(b"k%d" % chance.randrange(60),
                    None if chance.random() < 0.2 else chance.randbytes(chance.randrange(900)),
                    NOW + 10 * i, []) for _ in range(chance.randrange(1, 8))]
        one.append(batch.build(records, codec=i % 5, producer_id=5 + i % 9, producer_epoch=i,
                               base_sequence=0), NOW)
    end = cleaned(one, segment_bytes=100_000)["end_offset"]
    for i in range(200):
        one.append(batch.build([(b"k%d" % (i % 7), chance.randbytes(900), NOW, [])]), NOW)
    cleaned(one, first_dirty=end, now_ms=NOW + 5000, segment_bytes=100_000)
    one.close(NOW)
    files = [str(f) for f in sorted((tmp_path / "t-0").iterdir())
             if f.suffix in (".log", ".index", ".timeindex")]
    ran = kafka.run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(files))
    assert ran.returncode == 0
    said = (ran.stdout + ran.stderr).lower()
    assert not [line for line in said.splitlines() if any(word in line for word in COMPLAINTS)]
    assert "deletehorizonms: optionallong[" in said


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_kafka_dump_log_accepts_indexes_without_an_entry(tmp_path):
    one = opened(log.LogDir(tmp_path, 2))
    one.append(batch.build([(b"k", b"v", NOW, [])]), NOW)
    one.close(NOW)
    files = [str(tmp_path / f"t-0/{0:020}{suffix}") for suffix in (".index", ".timeindex")]
    ran = kafka.run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(files))
    said = (ran.stdout + ran.stderr).lower()
    assert ran.returncode == 0 and f"timestamp: {NOW} offset: 0" in said
    assert not [line for line in said.splitlines() if any(word in line for word in COMPLAINTS)]
