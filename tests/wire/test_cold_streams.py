"""More readers of cold data than the broker tracks: an evicted reader leaves nothing behind."""

import os
import time
from pathlib import Path

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire.messages import ask
from tests.wire.raw import DELETE_TOPICS, Connection, batch, record
from tests.wire.talk import append, create_topic, fetch, unique

STREAMS_MAX = 64
BYTES = 900_000


@pytest.fixture
def broker(tmp_path):
    with Brokerd(tmp_path) as started:
        yield started


def deleted_but_open(broker) -> list[str]:
    found = []
    for entry in Path(f"/proc/{broker.process.pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if ".log" in target and target.endswith("(deleted)"):
            found.append(target)
    return found


def test_readers_beyond_those_that_are_remembered_hold_no_deleted_file(broker):
    topic, count = unique("streams"), STREAMS_MAX + 16
    create_topic(broker.port, topic, partitions=count, file_delete_delay_ms=0)
    data = batch([record(value=os.urandom(BYTES))])
    for partition in range(count):
        append(broker.port, topic, data, partition)
    for partition in range(count):
        with open(Path(broker.data_dir) / f"{topic}-{partition}" / f"{0:020d}.log", "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with Connection(broker.port) as connection:
        for partition in range(count):
            assert fetch(connection, topic, partition=partition)["records"]
        ask(connection, DELETE_TOPICS, 5, timeout=10_000, topic_names=[topic])
    end_s = time.monotonic() + 30
    while deleted_but_open(broker) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert deleted_but_open(broker) == []
