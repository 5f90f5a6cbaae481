"""A broker that is short of descriptors, memory or disk space: it rejects requests, keeps running,
and recovers.
"""

import errno
import os
import resource
import shutil
import socket
import struct
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from pylog.testing.ports import free_port
from tests.fixtures.brokers import Brokerd, answers
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection, batch, frame, header, record
from tests.wire.talk import append, create_topic, fetch, produce, unique

MIB = 1 << 20
DELETE_RECORDS = 21
DESCRIPTORS = 300
MEMORY = 100 * MIB
CGROUP = Path("/sys/fs/cgroup/memory")


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS // 2, DESCRIPTORS))


@pytest.fixture
def short_of_descriptors(tmp_path):
    port = free_port()
    broker = Brokerd(tmp_path, {"metrics.listener": f"127.0.0.1:{port}"}, preexec=_few_descriptors)
    broker.metrics = f"http://127.0.0.1:{port}/metrics"
    with broker:
        yield broker
        assert broker.process.poll() in (None, 0) and broker.alarms() == []


@pytest.fixture
def short_of_memory(tmp_path):
    """Run in a cgroup if one can be created, else with little address space."""
    group = CGROUP / f"pylog-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(MEMORY))
    except OSError:
        pytest.skip("needs the right to make a memory cgroup")

    def enter():
        (group / "tasks").write_text(str(os.getpid()))

    # Its own files count towards the group's memory too, but can be evicted.
    broker = Brokerd(tmp_path, preexec=enter)
    try:
        with broker:
            yield broker
            assert broker.alive() and broker.alarms() == []
    finally:
        broker.kill()
        group.rmdir()


def _metric(broker, name: str) -> int:
    with urllib.request.urlopen(broker.metrics) as page:
        lines = page.read().decode().splitlines()
    return int(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])


def _idle(port: int, count: int, asking: bool = False) -> list[socket.socket]:
    held = []
    for _ in range(count):
        try:
            one = socket.create_connection(("127.0.0.1", port), timeout=5)
            if asking:
                one.sendall(frame(header(raw.API_VERSIONS, 0, 1)))
            held.append(one)
        except OSError as error:
            assert error.errno in (errno.ECONNRESET, errno.EPIPE), error
    return held


def _written(broker, topic: str) -> None:
    """Append enough for several rolls, create a topic, and read back."""
    first = append(broker.port, topic, batch())
    for _ in range(20):
        last = append(broker.port, topic, batch([record(value=bytes(400_000))]))
    create_topic(broker.port, unique("beside"), 3)
    with Connection(broker.port) as connection:
        assert fetch(connection, topic, first)["high_watermark"] == last + 1


@pytest.mark.parametrize("asking", [False, True], ids=["silent", "that-asked-once"])
def test_idle_connections_leave_files_their_descriptors(short_of_descriptors, asking):
    broker = short_of_descriptors
    topic = unique("starved")
    create_topic(broker.port, topic, segment_bytes=MIB)
    with Connection(broker.port) as busy:
        assert produce(busy, topic, batch())["error_code"] == 0
        held = _idle(broker.port, 1100, asking)
        open_files = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
        assert DESCRIPTORS // 4 < open_files < DESCRIPTORS // 2
        for _ in range(20):
            row = produce(busy, topic, batch([record(value=bytes(400_000))]))
            assert row["error_code"] == 0, row
    if asking:
        for one in held:
            one.close()
    # After a second of silence each of them can be evicted for a new connection.
    time.sleep(1.5)
    # More than the slots that became free since, by connections which had ended before.
    held += _idle(broker.port, 5, asking)
    end_s = time.monotonic() + 20
    while not answers(broker.port):
        assert time.monotonic() < end_s, "nobody is let in"
        time.sleep(0.2)
    _written(broker, topic)
    refused = _metric(broker, 'pylog_connections_over_descriptor_limit_total{action="refused"}')
    closed = _metric(broker, 'pylog_connections_over_descriptor_limit_total{action="closed"}')
    assert refused > 500 and (closed > 0 or asking)
    end_s = time.monotonic() + 10
    while "too few file descriptors" not in broker.tail(1 << 20):
        assert time.monotonic() < end_s, "nobody is told"
        time.sleep(0.1)
    for one in held:
        one.close()
    assert broker.stop() == 0


def _unfinished(port: int, count: int, size: int) -> list[socket.socket]:
    """Open connections that send `size` bytes of one frame that never ends."""
    held = []
    head = header(raw.PRODUCE, 8, 1)
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=5)
        one.setblocking(False)
        left = struct.pack(">i", 4 * MIB) + head + bytes(size)
        held.append([one, left])
    return held


def _push(held: list) -> None:
    """Send as much as the sockets accept now."""
    for entry in list(held):
        try:
            while entry[1]:
                entry[1] = entry[1][entry[0].send(entry[1]):]
        except BlockingIOError:
            pass
        except OSError:
            entry[0].close()
            held.remove(entry)


@pytest.mark.parametrize("value_bytes", [100, 900_000], ids=["small", "large"])
def test_unfinished_frames_do_not_exhaust_memory_or_block_other_clients(
        short_of_memory, value_bytes):
    broker = short_of_memory
    topic = unique("neighbour")
    create_topic(broker.port, topic)
    value = bytes(value_bytes)
    # The client's timeout ends it after as long as a cut-off would take.
    with Connection(broker.port, wait_s=10) as neighbour:
        held = _unfinished(broker.port, 300, 2 * MIB)
        for _ in range(30):
            _push(held)
            assert produce(neighbour, topic, batch([record(value=value)]))["error_code"] == 0
    assert answers(broker.port)
    for one, _ in held:
        one.close()
    append(broker.port, topic, batch([record(value=bytes(900_000))]))


def test_request_too_large_for_memory_closes_only_its_connection(short_of_memory):
    broker = short_of_memory
    assert "little memory" in broker.tail(1 << 20)
    with Connection(broker.port) as connection:
        connection.send(struct.pack(">i", 90 * MIB))
        assert connection.closed()
    assert answers(broker.port)


@pytest.fixture(params=["tmpfs", "ext4"])
def short_of_room(request, tmp_path):
    """A broker on a disk of 48 MiB, and the disk's folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    else:
        image = tmp_path / "image"
        with open(image, "wb") as file:
            file.truncate(48 * MIB)
        made = shutil.which("mkfs.ext4") and subprocess.run(
            ["mkfs.ext4", "-q", "-F", str(image)], capture_output=True).returncode == 0
        if not made:
            pytest.skip("needs mkfs.ext4")
        mount = ["mount", "-o", "loop", str(image), str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    broker = Brokerd(tmp_path / "run", data_dir=folder / "data")
    try:
        with broker:
            yield broker, folder
            assert broker.alive()
    finally:
        broker.kill()
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _room(folder) -> tuple[int, int]:
    """Return (free bytes, the reserve for log.dir.min.free.bytes=-1)."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize // 50


def test_full_disk_keeps_its_reserve_and_delete_records_frees_space(short_of_room):
    broker, folder = short_of_room
    topic, other = unique("full"), unique("beside")
    create_topic(broker.port, topic, segment_bytes=8 * MIB)
    create_topic(broker.port, other)
    with Connection(broker.port, wait_s=30) as connection:
        count, code = 0, 0
        while not code:
            assert count < 100
            row = produce(connection, topic, batch([record(value=bytes(900_000))]))
            code = row["error_code"]
            count += code == 0
        assert code == 56 and count > 30, (code, count)
        free, reserve = _room(folder)
        # Indexes and checkpoints may have used some of it, batches and preallocation have not.
        assert free > reserve * 3 // 4, (free, reserve)
        assert fetch(connection, topic, count - 1)["high_watermark"] == count
        # A file is deleted a minute later unless its space is needed.
        answer = ask(connection, DELETE_RECORDS, 2, timeout=10_000, topics=[
            {"name": topic, "partitions": [{"partition_index": 0, "offset": count}]}])
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0, answer
        end_s = time.monotonic() + 30
        while produce(connection, other, batch([record(value=bytes(900_000))]))["error_code"]:
            assert time.monotonic() < end_s, "produce stays refused"
            time.sleep(0.05)
        while _room(folder)[0] < 24 * MIB:
            assert time.monotonic() < end_s, "nothing was given back"
            time.sleep(0.05)
