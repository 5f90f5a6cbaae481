"""`pylog topics branch` on a running broker, during writes, and reading the branch with Kafka."""

import threading
import time

import pytest

from pylog.client.errors import NoBrokersError
from pylog.metadata.controller.partitions.topic_branches import AT_OFFSET, SOURCE
from tests.fixtures.brokers import Brokerd
from tests.tools.support import run
from tests.wire import raw
from tests.wire.raw import Connection, record
from tests.wire.records import batches
from tests.wire.talk import append, create_topic, fetch, produce, unique

SEGMENT = 1 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Brokerd(tmp_path_factory.mktemp("branching"),
                 {"log.retention.check.interval.ms": 1000}) as running:
        yield running


def fill(broker, topic, count, partition=0, first=0, size=100, time_ms=None):
    """Append batches of two records with ascending timestamps."""
    begin = time_ms if time_ms is not None else 1_767_225_600_000
    with Connection(broker.port) as connection:
        for number in range(first, first + count):
            rows = [record(b"%d" % (number % 50), b"%d " % number * size, offset_delta=delta,
                           timestamp_delta=delta) for delta in range(2)]
            data = raw.batch(rows, base_timestamp=begin + 10 * number,
                             max_timestamp=begin + 10 * number + 1)
            assert produce(connection, topic, data, partition=partition,
                           acks=-1)["error_code"] == 0


def bases(broker, topic, partition=0):
    found, offset = [], 0
    with Connection(broker.port) as connection:
        while True:
            row = fetch(connection, topic, offset, partition=partition)
            assert row["error_code"] == 0
            got = list(batches(row["records"] or b""))
            if not got:
                return found
            found += [one.base_offset for one in got]
            offset = got[-1].last_offset + 1


def test_a_branch_is_read_and_written_by_itself(broker):
    source, copy = unique("source"), unique("copy")
    create_topic(broker.port, source, 2, segment_bytes=SEGMENT, retention_ms=-1)
    fill(broker, source, 40)
    told = run("topic", "branch", source, copy, "--json", broker=broker).json
    assert told["topic"] == copy and told["source"] == source and told["id"]
    assert bases(broker, copy) == bases(broker, source) == list(range(0, 80, 2))
    fill(broker, copy, 3)
    fill(broker, source, 1)
    fill(broker, copy, 1, partition=1)
    assert len(bases(broker, copy)) == 43 and len(bases(broker, source)) == 41
    described, = run("topics", "describe", copy, "--json", broker=broker).json
    assert described["partition_count"] == 2
    assert described["configs"]["retention.ms"] == "-1"
    assert not [key for key in described["configs"] if key.startswith("pylog.")]


def test_at_cuts_by_offset_and_by_time(broker):
    source = unique("source")
    create_topic(broker.port, source, 1, retention_ms=-1)
    fill(broker, source, 20)
    by_offset, by_time = unique("copy"), unique("copy")
    run("topics", "branch", source, by_offset, "--at", "11", broker=broker)
    run("topics", "branch", source, by_time, "--at", "2026-01-01T00:00:00.051+00:00",
        broker=broker)
    ends = {row["topic"]: row["end_offset"] for row in run(
        "offsets", by_offset, by_time, "--json", broker=broker).json}
    assert ends == {by_offset: 11, by_time: 11}
    assert bases(broker, by_offset) == [0, 2, 4, 6, 8, 10]


def test_branch_is_created_by_any_client(broker):
    admin = pytest.importorskip("confluent_kafka.admin")
    source, copy = unique("source"), unique("copy")
    create_topic(broker.port, source, 1)
    fill(broker, source, 5, time_ms=int(time.time() * 1000) - 1000)
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([admin.NewTopic(
        copy, -1, -1, config={SOURCE: source, AT_OFFSET: "6"})])[copy].result(30)
    assert bases(broker, copy) == [0, 2, 4]


def test_invalid_branch_is_rejected_in_one_line(broker):
    source = unique("source")
    create_topic(broker.port, source, 1)
    assert "no topic" in run("topics", "branch", "nobody-has-this", "x", broker=broker,
                             fails=True).err
    assert "already exists" in run("topics", "branch", source, source, broker=broker,
                                   fails=True).err
    run("topics", "branch", source, unique("copy"), "--dry-run", broker=broker)
    assert "is not a time" in run("topics", "branch", source, "y", "--at", "noon", broker=broker,
                               fails=True).err


def test_broker_that_disappears_is_reported_in_one_line(broker, monkeypatch):
    async def gone(*_):
        raise NoBrokersError("copy: no broker answered")

    source = unique("source")
    create_topic(broker.port, source, 1)
    monkeypatch.setattr("pylog.client.admin.admin.Admin.create_topics", gone)
    told = run("topics", "branch", source, unique("copy"), broker=broker, fails=True)
    assert told.err == "pylog: topic copy: no broker answered\n"


def test_branches_are_whole_while_producers_write(broker):
    source = unique("source")
    create_topic(broker.port, source, 1, retention_ms=-1, segment_bytes=SEGMENT)
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            fill(broker, source, 20, first=number, size=2000)
            number += 20

    writer = threading.Thread(target=write)
    writer.start()
    try:
        copies = []
        for _ in range(5):
            copies.append(unique("copy"))
            run("topics", "branch", source, copies[-1], broker=broker)
    finally:
        stop.set()
        writer.join()
    everything = bases(broker, source)
    for copy in copies:
        found = bases(broker, copy)
        assert found == everything[:len(found)]
    assert len(bases(broker, copies[-1])) > len(bases(broker, copies[0]))


def test_compaction_of_a_branch_does_not_affect_its_source(tmp_path):
    with Brokerd(tmp_path, {"log.cleaner.backoff.ms": 200}) as broker:
        create_topic(broker.port, "source", 1, segment_bytes=SEGMENT, retention_ms=-1)
        fill(broker, "source", 300, size=2000)
        run("topics", "branch", "source", "copy", "--set", "cleanup.policy=compact",
            "--set", "min.cleanable.dirty.ratio=0.01", broker=broker)
        fill(broker, "copy", 60, size=2000)
        end_s = time.monotonic() + 60
        while len(bases(broker, "copy")) > 150 and time.monotonic() < end_s:
            time.sleep(0.3)
        assert len(bases(broker, "copy")) <= 150
        assert bases(broker, "source") == list(range(0, 600, 2))
        broker.kill()
        broker.start()
        assert bases(broker, "source") == list(range(0, 600, 2))
        append(broker.port, "copy", raw.batch([record(b"k")]))


@pytest.mark.parametrize("pause_ms", [1, 5, 15, 30])
def test_killed_broker_leaves_no_branch_or_a_complete_one(tmp_path, pause_ms):
    with Brokerd(tmp_path) as broker:
        create_topic(broker.port, "source", 4, retention_ms=-1)
        for partition in range(4):
            fill(broker, "source", 10, partition=partition)
        asked = threading.Thread(target=lambda: run_quietly(broker), daemon=True)
        asked.start()
        names = broker.data_dir
        end_s = time.monotonic() + 20
        while not list(names.glob("copy-*")) and time.monotonic() < end_s:
            time.sleep(0.0005)
        time.sleep(pause_ms / 1000)
        broker.kill()
        asked.join(30)
        broker.start()
        listed = [row["topic"] for row in run("topics", "list", "--json", broker=broker).json]
        for partition in range(4):
            assert bases(broker, "source", partition) == list(range(0, 20, 2))
            if "copy" in listed:
                assert bases(broker, "copy", partition) == list(range(0, 20, 2))
        if "copy" not in listed:
            end_s = time.monotonic() + 30
            while list(names.glob("copy-*")) and time.monotonic() < end_s:
                time.sleep(0.05)
            assert not list(names.glob("copy-*"))
            run("topics", "branch", "source", "copy", broker=broker)


def run_quietly(broker):
    from pylog.tools.app import main

    main(["topics", "branch", "source", "copy", "-b", broker.bootstrap, "--timeout", "2"])


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_kafkas_dump_tool_reads_a_branch(tmp_path):
    from bench import kafka

    with Brokerd(tmp_path) as broker:
        create_topic(broker.port, "source", 1, segment_bytes=SEGMENT, retention_ms=-1)
        fill(broker, "source", 200, size=2000)
        run("topics", "branch", "source", "copy", "--at", "301", broker=broker)
        fill(broker, "copy", 5)
        broker.stop()
        files = [str(path) for path in sorted((broker.data_dir / "copy-0").iterdir())
                 if path.suffix in (".log", ".index", ".timeindex", ".snapshot")]
        ran = kafka.run_tool("org.apache.kafka.tools.DumpLogSegments", "--deep-iteration",
                             "--files", ",".join(files))
        said = (ran.stdout + ran.stderr).lower()
        assert ran.returncode == 0 and said.count("isvalid: true") == 156
        assert not [line for line in said.splitlines()
                    if "mismatch" in line or "isvalid: false" in line or "not found" in line]
