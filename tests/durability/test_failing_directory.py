"""One of several disks fails: its partitions stay offline until a start finds it healthy (KIP-112).

All other partitions continue. The first directory holds the metadata: the broker stops if it fails.
"""

import contextlib
import errno
import re
import shutil
import subprocess
import time
import urllib.request

import pytest

from pylog.coordinator.runtime.internal_topic import partition_of
from tests.durability.disk import SYNC_BEGIN, environment, read_record
from tests.fixtures.brokers import BrokerDied, Brokerd
from tests.wire import raw
from tests.wire.messages import ask, decode, encode
from tests.wire.raw import Connection, batch, record
from tests.wire.talk import create_topic, fetch, produce, unique

LOG_DIRS, DELETE_TOPICS, DESCRIBE_PARTITIONS = 35, 20, 75
ALTER_LOG_DIRS = 34
NO_LEADER, LEADER_NOT_AVAILABLE, STORAGE_ERROR = -1, 5, 56
WAIT_S = 15


class Disks:
    """A broker with two log directories, and the faults file that makes one of them fail."""

    def __init__(self, ram, preload, record=None, **settings):
        self.good, self.bad = ram / "run" / "good", ram / "run" / "bad"
        self.faults = ram / "faults"
        self.broker = Brokerd(
            ram / "run", {"log.dirs": f"{self.good},{self.bad}", **settings},
            environment=environment(preload, ram / "run", record, self.faults), data_dir=self.good)

    def fail(self, kind: str, path=None, code=errno.EIO):
        self.faults.write_text(f"{kind} {path or f'{self.bad}/'} {code}\n")

    def partitions_of(self, topic: str, count: int) -> dict[str, list[int]]:
        found = {"good": [], "bad": []}
        for index in range(count):
            found["bad" if (self.bad / f"{topic}-{index}").exists() else "good"].append(index)
        return found

    def partitions(self, topic: str) -> list[dict]:
        with Connection(self.broker.port) as connection:
            row = ask(connection, raw.METADATA, 12, topics=[{"name": topic, "topic_id": None}],
                      allow_auto_topic_creation=False)["topics"][0]
        return sorted(row["partitions"], key=lambda part: part["partition_index"])

    def wait_offline(self, topic: str, wanted: list[int]) -> list[dict]:
        """Wait until Metadata has no leader for those partitions of the topic."""
        end_s = time.monotonic() + WAIT_S
        while True:
            rows = self.partitions(topic)
            found = [row["partition_index"] for row in rows if row["leader_id"] == NO_LEADER]
            if found == wanted:
                return rows
            assert time.monotonic() < end_s, (found, wanted, self.broker.tail())
            time.sleep(0.05)

    def produced(self, topic: str, index: int, size: int = 100) -> int:
        with Connection(self.broker.port) as connection:
            return produce(connection, topic, batch([record(value=bytes(size))]),
                           partition=index)["error_code"]

    def errors(self, topic: str, index: int) -> tuple[int, int, int]:
        """Return the error codes of Produce, Fetch and ListOffsets."""
        with Connection(self.broker.port) as connection:
            listed = ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[{
                "name": topic, "partitions": [{"partition_index": index, "timestamp": -1}]}])
            return (self.produced(topic, index),
                    fetch(connection, topic, 0, partition=index)["error_code"],
                    listed["topics"][0]["partitions"][0]["error_code"])


@pytest.fixture
def disks(ram, preload):
    one = Disks(ram, preload, **{"log.cleaner.backoff.ms": "100"})
    with one.broker:
        yield one


def _append(disks, topic, index):
    disks.fail("write")
    assert disks.produced(topic, index) == STORAGE_ERROR


def _flush(disks, topic, index):
    disks.fail("sync")
    assert disks.produced(topic, index) == STORAGE_ERROR


def _read(disks, topic, index):
    disks.fail("read")
    with Connection(disks.broker.port) as connection:
        # The response is being sent when the read fails: as in Kafka, that closes the connection.
        try:
            assert fetch(connection, topic, 0, partition=index)["error_code"] == STORAGE_ERROR
        except (OSError, raw.Closed):
            return


def _roll(disks, topic, index):
    disks.fail("open")
    codes = [disks.produced(topic, index, 400_000) for _ in range(4)]
    assert codes[0] == 0 and codes[-1] == STORAGE_ERROR


def _clean(disks, topic, index):
    name = "compacted"
    create_topic(disks.broker.port, name, 2, cleanup_policy="compact", segment_bytes=1 << 20,
                 min_cleanable_dirty_ratio="0.01")
    index, = disks.partitions_of(name, 2)["bad"]
    disks.fail("open", disks.bad / f"{name}-{index}" / f"{0:020}.log.cleaned")
    for _ in range(4):
        disks.produced(name, index, 400_000)


def _delete(disks, topic, index):
    name = "removed"
    create_topic(disks.broker.port, name, 2)
    disks.fail("name")
    with Connection(disks.broker.port) as connection:
        ask(connection, DELETE_TOPICS, 4, topic_names=[name], timeout=5000)


@pytest.mark.parametrize("fault", [_append, _flush, _read, _roll, _clean, _delete])
def test_disk_fault_takes_only_its_partitions_offline(disks, fault):
    topic = unique("spread")
    create_topic(disks.broker.port, topic, 4, segment_bytes=1 << 20)
    places = disks.partitions_of(topic, 4)
    assert len(places["good"]) == len(places["bad"]) == 2
    for index in range(4):
        assert disks.produced(topic, index) == 0
    fault(disks, topic, places["bad"][0])
    rows = disks.wait_offline(topic, places["bad"])
    for index, row in enumerate(rows):
        offline = index in places["bad"]
        assert row["error_code"] == (LEADER_NOT_AVAILABLE if offline else 0)
        assert row["offline_replicas"] == (row["replica_nodes"] if offline else [])
        assert row["isr_nodes"] == row["replica_nodes"]
        assert disks.errors(topic, index) == (
            (STORAGE_ERROR,) * 3 if offline else (0, 0, 0)), index
    with Connection(disks.broker.port) as connection:
        told = {row["log_dir"]: row["error_code"]
                for row in ask(connection, LOG_DIRS, 4, topics=None)["results"]}
    assert told == {str(disks.good): 0, str(disks.bad): STORAGE_ERROR}
    later = unique("later")
    create_topic(disks.broker.port, later, 3)
    assert len(disks.partitions_of(later, 3)["good"]) == 3
    assert f'msg="a log directory is offline" directory={disks.bad}' in disks.broker.tail(20_000)
    disks.faults.unlink()
    assert disks.errors(topic, places["bad"][0])[0] == STORAGE_ERROR, "it is offline until a start"
    disks.broker.kill()
    disks.broker.start()
    for index in range(4):
        assert disks.errors(topic, index) == (0, 0, 0)
    assert all(row["leader_id"] >= 0 for row in disks.partitions(topic))


def test_groups_on_the_other_disk_continue(disks):
    topic = unique("committed")
    create_topic(disks.broker.port, topic)
    port = disks.broker.port
    with Connection(port, wait_s=20) as connection:
        ask(connection, 10, 3, key="0", key_type=0)
    names = [str(number) for number in range(40)]
    places = disks.partitions_of("__consumer_offsets", 50)
    home = {name: partition_of(name, 50) for name in names}
    assert {"good", "bad"} == {where for where, parts in places.items()
                               if set(parts) & set(home.values())}
    disks.fail("sync")
    for offset in range(3):
        # Send all at once, so that group commits of both disks complete together.
        links = {name: Connection(port, wait_s=20) for name in names}
        for name, link in links.items():
            link.send(raw.frame(raw.header(8, 6, 1) + encode(
                8, 6, group_id=name, generation_id_or_member_epoch=-1, member_id="", topics=[{
                    "name": topic, "partitions": [{
                        "partition_index": 0, "committed_offset": offset,
                        "committed_leader_epoch": -1, "committed_metadata": ""}]}])))
        for name, link in links.items():
            row = decode(8, 6, link.answer(8, 6, 1))["topics"][0]["partitions"][0]
            assert (row["error_code"] == 0) == (home[name] in places["good"]), (name, row)
            link.close()


def test_restarts_with_a_failed_disk_serve_the_others(disks):
    topic = unique("spread")
    create_topic(disks.broker.port, topic, 4)
    places = disks.partitions_of(topic, 4)
    for index in range(4):
        assert disks.produced(topic, index) == 0
    disks.fail("any")
    assert disks.produced(topic, places["bad"][0]) == STORAGE_ERROR
    disks.wait_offline(topic, places["bad"])
    assert disks.broker.stop() == 0
    for _ in range(2):
        disks.broker.start()
        assert f'msg="a log directory is offline" directory={disks.bad} reason=' \
            in disks.broker.tail(20_000)
        rows = disks.wait_offline(topic, places["bad"])
        assert [row["offline_replicas"] != [] for row in rows] == [
            index in places["bad"] for index in range(4)]
        for index in places["bad"]:
            assert disks.errors(topic, index) == (STORAGE_ERROR,) * 3
        for index in places["good"]:
            assert disks.errors(topic, index) == (0, 0, 0)
        create_topic(disks.broker.port, unique("new"), 2)
        assert disks.broker.stop() == 0
    disks.faults.unlink()
    disks.broker.start()
    for index in range(4):
        assert disks.errors(topic, index) == (0, 0, 0)
    with Connection(disks.broker.port) as connection:
        assert fetch(connection, topic, 0, partition=places["bad"][0])["high_watermark"] >= 2


def _remove_files(disks):
    for folder in disks.bad.glob("spread*"):
        shutil.rmtree(folder)


def _remove_directory(disks):
    shutil.rmtree(disks.bad)


def _rename_directory(disks):
    disks.bad.rename(disks.bad.with_name("moved"))


def test_partitions_without_files_go_offline_and_their_directory_does_not(disks):
    topic = unique("spread")
    create_topic(disks.broker.port, topic, 4)
    places = disks.partitions_of(topic, 4)
    for index in range(4):
        assert disks.produced(topic, index) == 0
    _remove_files(disks)
    for index in places["bad"]:
        assert disks.produced(topic, index) == STORAGE_ERROR
    disks.wait_offline(topic, places["bad"])
    assert "a log directory is offline" not in disks.broker.tail(20_000)
    for index in places["good"]:
        assert disks.produced(topic, index) == 0


@pytest.mark.parametrize("remove", [_remove_directory, _rename_directory])
@pytest.mark.parametrize("acks", [-1, 1])
def test_directory_deleted_during_writes_goes_offline(disks, remove, acks):
    topic = unique("spread")
    create_topic(disks.broker.port, topic, 4)
    places = disks.partitions_of(topic, 4)
    for index in range(4):
        assert disks.produced(topic, index) == 0
    remove(disks)
    index = places["bad"][0]
    if acks == -1:
        assert disks.produced(topic, index) == STORAGE_ERROR
    else:
        with Connection(disks.broker.port) as connection:
            produce(connection, topic, batch([record(value=b"lost")]), partition=index, acks=1)
    disks.wait_offline(topic, places["bad"])
    assert f'msg="a log directory is offline" directory={disks.bad} reason=' \
        in disks.broker.tail(20_000)
    for index in range(4):
        assert disks.errors(topic, index) == (
            (STORAGE_ERROR,) * 3 if index in places["bad"] else (0, 0, 0)), index


@pytest.mark.parametrize("path", ["good", "both"])
def test_broker_without_its_first_directory_exits_with_a_reason(disks, path):
    topic = unique("spread")
    create_topic(disks.broker.port, topic, 4)
    index = disks.partitions_of(topic, 4)["good"][0]
    disks.fail("sync", disks.good if path == "good" else disks.good.parent)
    for at in range(4) if path == "both" else [index]:
        try:
            assert disks.produced(topic, at) == STORAGE_ERROR
        except (OSError, raw.Closed):
            break
    assert disks.broker.process.wait(WAIT_S) == 1
    text = disks.broker.tail(20_000)
    assert "brokerd stops:" in text and str(disks.good) in text
    assert "Traceback" not in text
    disks.fail("any", disks.good)
    with pytest.raises(BrokerDied, match=f"log directory {disks.good}: Input/output error"):
        disks.broker.start()
    disks.faults.unlink()
    disks.broker.start()
    assert disks.errors(topic, index) == (0, 0, 0)


def test_read_only_directory_is_offline_from_the_start(ram, tmp_path):
    good, bad = ram / "run" / "good", tmp_path / "bad"
    bad.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", bad],
                      capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    broker = Brokerd(ram / "run", {"log.dirs": f"{good},{bad}"}, data_dir=good)
    try:
        with broker:
            create_topic(broker.port, "spread", 4)
            broker.stop()
            subprocess.run(["mount", "-o", "remount,ro", bad], check=True)
            broker.start()
            assert "Read-only file system" in broker.tail()
            with Connection(broker.port) as connection:
                codes = [produce(connection, "spread", batch(), partition=index)["error_code"]
                         for index in range(4)]
            assert sorted(codes) == [0, 0, STORAGE_ERROR, STORAGE_ERROR]
    finally:
        broker.kill()
        subprocess.run(["umount", "-l", bad], check=True)


FLUSHERS = 4  # flusher threads of one directory: csrc/log_manager/flusher.h
GROUP = 32  # logs flushed by one syncfs: csrc/log_manager/flusher.c


def _held(record, topic):
    return {event.path for event in read_record(record)
            if event.type == SYNC_BEGIN and f"/{topic}-" in event.path}


def test_failed_group_sync_acknowledges_no_partition(ram, preload):
    record = ram / "record"
    one = Disks(ram, preload, record)
    with one.broker, contextlib.ExitStack() as stack:
        first, topic = unique("first"), unique("group")
        create_topic(one.broker.port, first, 2 * FLUSHERS)
        create_topic(one.broker.port, topic, 3 * GROUP)
        bad = one.partitions_of(topic, 3 * GROUP)["bad"]
        assert len(bad) >= GROUP
        # While all threads are held, the waiting logs form one group.
        one.faults.write_text(f"hold /{first}- 1\nsyncfs {one.bad} {errno.EIO}\n")
        for index in one.partitions_of(first, 2 * FLUSHERS)["bad"]:
            connection = stack.enter_context(Connection(one.broker.port))
            body = raw.produce_body(8, first, [(index, batch())])
            connection.send(raw.frame(raw.header(raw.PRODUCE, 8) + body))
        end_s = time.monotonic() + WAIT_S
        while len(_held(record, first)) < FLUSHERS:
            assert time.monotonic() < end_s, _held(record, first)
            time.sleep(0.02)
        connection = stack.enter_context(Connection(one.broker.port))
        body = raw.produce_body(8, topic, [(index, batch()) for index in bad])
        connection.send(raw.frame(raw.header(raw.PRODUCE, 8) + body))
        with Connection(one.broker.port) as other:
            while not fetch(other, topic, 0, partition=bad[-1])["high_watermark"]:
                assert time.monotonic() < end_s
                time.sleep(0.02)
        time.sleep(0.2)  # All records are appended; wait for the flush requests.
        one.fail("syncfs", one.bad)
        rows = decode(raw.PRODUCE, 8, connection.answer(raw.PRODUCE, 8, 1))["responses"][0]
        codes = {row["error_code"] for row in rows["partition_responses"]}
        assert codes == {STORAGE_ERROR}
        one.wait_offline(topic, bad)
        assert "syncfs" in one.broker.tail(20_000)


def test_metric_counts_the_failed_disk_and_its_partitions(ram, preload):
    one = Disks(ram, preload, **{"metrics.listener": "127.0.0.1:0"})
    with one.broker:
        topic = unique("spread")
        create_topic(one.broker.port, topic, 4)
        one.fail("any")
        assert one.produced(topic, one.partitions_of(topic, 4)["bad"][0]) == STORAGE_ERROR
        one.wait_offline(topic, one.partitions_of(topic, 4)["bad"])
        address = re.search(r'msg="metrics endpoint" address=(\S+)', one.broker.tail(20_000))[1]
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            lines = answer.read().decode().splitlines()
    assert f'pylog_log_directory_offline{{directory="{one.bad}"}} 1' in lines
    assert f'pylog_log_directory_offline{{directory="{one.good}"}} 0' in lines
    assert "pylog_partitions_offline 2" in lines


@pytest.mark.parametrize("failing", ["goal", "source"])
def test_disk_failure_during_a_move_takes_only_its_partitions_offline(disks, failing):
    topic = unique("moving")
    create_topic(disks.broker.port, topic, 2)
    places = disks.partitions_of(topic, 2)
    index, = places["good" if failing == "goal" else "bad"]
    for _ in range(40):
        assert disks.produced(topic, index, 900_000) == 0
    goal = disks.bad if failing == "goal" else disks.good
    with Connection(disks.broker.port) as connection:
        row = ask(connection, ALTER_LOG_DIRS, 2, dirs=[{"path": str(goal), "topics": [
            {"name": topic, "partitions": [index]}]}])["results"][0]["partitions"][0]
    assert row["error_code"] == 0
    disks.fail("any")
    disks.produced(topic, *places["bad"])
    disks.wait_offline(topic, places["bad"])
    assert disks.errors(topic, places["good"][0]) == (0, 0, 0)
    disks.faults.unlink()
    assert disks.broker.stop() == 0
    disks.broker.start()
    for each in (0, 1):
        assert disks.errors(topic, each) == (0, 0, 0)
    with Connection(disks.broker.port) as connection:
        assert fetch(connection, topic, 0, partition=index)["high_watermark"] >= 40
    # The incomplete copy is deleted soon after the start.
    end_s = time.monotonic() + WAIT_S
    while any(path.name.endswith("-future") for path in disks.bad.iterdir()):
        assert time.monotonic() < end_s
        time.sleep(0.05)
