"""Disk full: the partition rejects records, no acknowledged record is lost, others continue."""

import errno
import re
import resource
import subprocess
import time
import urllib.request

import pytest

from pylog._native.log import log
from pylog._native.records.batch import build as built
from tests.durability.disk import environment
from tests.fixtures.brokers import Brokerd, answers
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection, batch, record
from tests.wire.talk import create_topic, fetch, produce, unique

MIB = 1 << 20


def _fill_until_refused(connection: Connection, topic: str, limit: int = 400) -> tuple[int, int]:
    """Append 100 kB records until one is rejected; return (acknowledged records, error code)."""
    for number in range(limit):
        row = produce(connection, topic, batch([record(value=bytes(100_000))]))
        if row["error_code"]:
            return number, row["error_code"]
    return limit, 0


def _readable(connection: Connection, topic: str, count: int, small: int = 0) -> None:
    """Check that all records are readable. count: records of 100 kB; small: records after them."""
    for offset in range(0, count, max(1, count // 10)):
        row = fetch(connection, topic, offset, partition_bytes_max=1000)
        assert row["error_code"] == 0 and len(row["records"]) > 100_000, offset
    assert fetch(connection, topic, 0, partition_bytes_max=1000)["high_watermark"] == count + small


def _no_space(part: str, faults) -> None:
    faults.write_text(f"write {part} {errno.ENOSPC}\n")


def test_partition_without_space_rejects_and_others_continue(ram, preload):
    faults = ram / "faults"
    broker = Brokerd(ram / "run", environment=environment(preload, ram / "run" / "data",
                                                          faults=faults))
    with broker:
        full, other = unique("full"), unique("other")
        create_topic(broker.port, full)
        create_topic(broker.port, other)
        with Connection(broker.port) as connection:
            for _ in range(20):
                assert produce(connection, full, batch([record(value=bytes(100_000))]))[
                    "error_code"] == 0
            _no_space(f"/{full}-0/", faults)
            codes = [produce(connection, full, batch([record(value=bytes(100_000))]))["error_code"]
                     for _ in range(3)]
            assert 0 not in codes, codes
            _readable(connection, full, 20)
            for _ in range(5):
                assert produce(connection, other, batch())["error_code"] == 0
            assert answers(broker.port)
        faults.unlink()
        broker.kill()
        broker.start()
        with Connection(broker.port) as connection:
            _readable(connection, full, 20)
            row = produce(connection, full, batch([record(value=bytes(100_000))]))
            assert (row["error_code"], row["base_offset"]) == (0, 20)


def test_file_size_limit_is_an_error_and_does_not_kill_the_broker(ram):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 * MIB, 6 * MIB))

    with Brokerd(ram, preexec=limit) as broker:
        topic, other = unique("limited"), unique("other")
        create_topic(broker.port, topic)
        create_topic(broker.port, other)
        with Connection(broker.port) as connection:
            count, code = _fill_until_refused(connection, topic)
            assert code != 0 and 0 < count < 64, (count, code)
            _readable(connection, topic, count)
            assert produce(connection, other, batch())["error_code"] == 0
        broker.preexec = None
        broker.kill()
        broker.start()
        with Connection(broker.port) as connection:
            _readable(connection, topic, count)
            row = produce(connection, topic, batch())
            assert (row["error_code"], row["base_offset"]) == (0, count)


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 48 MiB. The test is skipped where mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)],
                             capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount; the shim's variant of this test runs everywhere")
    try:
        yield folder
    finally:
        for _ in range(50):
            if subprocess.run(["umount", str(folder)], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)


def test_full_file_system_rejects_writes_serves_reads_and_recovers(small_disk, tmp_path):
    with Brokerd(tmp_path / "run", data_dir=small_disk / "data") as broker:
        topic = unique("full")
        create_topic(broker.port, topic)
        with Connection(broker.port, wait_s=30) as connection:
            count, code = _fill_until_refused(connection, topic, 1000)
            assert code != 0 and count > 50, (count, code)
            _readable(connection, topic, count)
            assert answers(broker.port)
        subprocess.run(["mount", "-o", "remount,size=120m", str(small_disk)], check=True)
        broker.kill()
        broker.start()
        with Connection(broker.port) as connection:
            _readable(connection, topic, count)
            row = produce(connection, topic, batch())
            assert (row["error_code"], row["base_offset"]) == (0, count)
        broker.kill()


def test_epochs_are_rebuilt_at_a_start_after_a_full_file_system(small_disk):
    directory = log.LogDir(small_disk / "data", 1)
    one = log.Log.open(directory, "t", 0, bytes(16), {"preallocate": False}, now_ms=1)
    for epoch in (0, 1):
        one.become_leader(epoch)
        one.append(built([(b"", bytes(100), 1, [])]), 1)
        if epoch == 0:
            one.flush()
    (small_disk / "rest").write_bytes(b"")
    with pytest.raises(OSError), open(small_disk / "rest", "ab", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))
    one.flush()
    assert (one.flushed_offset, one.recovery_point, directory.offline) == (2, 1, False)
    one.release()
    again = log.Log.open(directory, "t", 0, bytes(16), now_ms=1, recovery_point=1)
    assert [again.epoch_of(offset) for offset in (0, 1)] == [0, 1]
    (small_disk / "rest").unlink()
    again.flush()
    assert again.recovery_point == 2
    again.release()


def test_batch_rejected_for_space_is_not_stored_partially(ram, preload):
    faults = ram / "faults"
    broker = Brokerd(ram / "run", environment=environment(preload, ram / "run" / "data",
                                                          faults=faults))
    with broker:
        topic = unique("part")
        create_topic(broker.port, topic)
        with Connection(broker.port) as connection:
            assert produce(connection, topic, batch())["error_code"] == 0
            _no_space(f"/{topic}-0/", faults)
            assert produce(connection, topic, batch(codec=raw.LZ4))["error_code"] != 0
            assert fetch(connection, topic, 0)["high_watermark"] == 1


def test_groups_continue_when_space_returns(ram, preload):
    faults = ram / "faults"
    broker = Brokerd(ram / "run", environment=environment(preload, ram / "run" / "data",
                                                          faults=faults))
    with broker:
        topic, groups = unique("committed"), [unique("group") for _ in range(6)]
        create_topic(broker.port, topic)
        with Connection(broker.port, wait_s=30) as connection:
            for group in groups:
                assert _commit(connection, group, topic, 1) == 0
            _no_space("/__consumer_offsets-", faults)
            for group in groups:
                assert _commit(connection, group, topic, 2, tries=1) in (14, 15, 16)
            for group in groups:
                assert _committed(connection, group, topic) == 1
            faults.unlink()
            for group in groups:
                assert _commit(connection, group, topic, 3) == 0
        for again in (broker.stop, broker.kill):
            again()
            broker.start()
            with Connection(broker.port, wait_s=30) as connection:
                for group in groups:
                    assert _committed(connection, group, topic) == 3


def _committed(connection, group: str, topic: str) -> int:
    end_s = time.monotonic() + 20
    while True:
        ask(connection, 10, 3, key=group, key_type=0)
        answer = ask(connection, 9, 5, group_id=group, topics=[
            {"name": topic, "partition_indexes": [0]}])
        if answer["error_code"] not in (14, 15, 16) or time.monotonic() > end_s:
            return answer["topics"][0]["partitions"][0]["committed_offset"]
        time.sleep(0.05)


RESERVE = 20 * MIB


def test_below_the_reserve_only_produce_is_rejected(small_disk, tmp_path):
    with Brokerd(tmp_path / "run", {"log.dir.min.free.bytes": RESERVE},
                 data_dir=small_disk / "data") as broker:
        topic, group = unique("reserve"), unique("group")
        create_topic(broker.port, topic, file_delete_delay_ms=0)
        with Connection(broker.port, wait_s=30) as connection:
            count, code = _fill_until_refused(connection, topic, 1000)
            assert code == 56 and count > 10, (count, code)
            small = _wait_refused(connection, topic)
            _readable(connection, topic, count, small)
            other = unique("other")
            create_topic(broker.port, other)
            assert _commit(connection, group, topic, 7) == 0
        broker.kill()
        broker.start()
        with Connection(broker.port, wait_s=30) as connection:
            _readable(connection, topic, count, small)
            _wait_refused(connection, other)
            answer = ask(connection, 20, 4, topic_names=[topic], timeout=10000)
            assert answer["responses"][0]["error_code"] == 0
            end_s = time.monotonic() + 20
            while produce(connection, other, batch())["error_code"]:
                assert time.monotonic() < end_s, "produce stays refused"
                time.sleep(0.1)
        broker.kill()


def _wait_refused(connection, topic) -> int:
    """Append until a record is rejected; return how many more were accepted.

    Smaller records than the rejected one may fit, and a broker checks its free space once a second
    and when files grow.
    """
    count, end_s = 0, time.monotonic() + 20
    for size, refusals in ((100_000, 3), (30_000, 3), (3000, 3), (300, 3), (0, 30)):
        quiet = 0
        while quiet < refusals:
            assert time.monotonic() < end_s, "produce is not refused for good"
            code = produce(connection, topic, batch([record(value=bytes(size))]))["error_code"]
            assert code in (0, 56)
            count, quiet = (count + 1, 0) if code == 0 else (count, quiet + 1)
            if code:
                time.sleep(0.05)
    return count


def _commit(connection, group: str, topic: str, offset: int, tries: int = 1000) -> int:
    end_s = time.monotonic() + 20
    while True:
        tries -= 1
        # The first request creates the offsets topic.
        ask(connection, 10, 3, key=group, key_type=0)
        answer = ask(connection, 8, 6, group_id=group, generation_id_or_member_epoch=-1,
                     member_id="", topics=[{"name": topic, "partitions": [{
                         "partition_index": 0, "committed_offset": offset,
                         "committed_leader_epoch": -1, "committed_metadata": ""}]}])
        code = answer["topics"][0]["partitions"][0]["error_code"]
        if code not in (14, 15, 16) or not tries or time.monotonic() > end_s:
            return code
        time.sleep(0.05)


SHORTAGES = {
    errno.ENOSPC: "No space is left on the broker's disk.",
    errno.EDQUOT: "The broker's disk quota is used up.",
    errno.EMFILE: "The broker has no free file descriptor.",
    errno.ENOMEM: "The broker is short of memory.",
}


def _failures(broker, topic) -> int:
    address = re.search(r'msg="metrics endpoint" address=(\S+)', broker.tail(20_000))[1]
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        text = answer.read().decode()
    return int(re.search(rf'pylog_topic_produce_failures_total{{topic="{topic}"}} (\d+)', text)[1])


def _count_lines(broker, text: str) -> int:
    return broker.tail(200_000).count(text)


def _wait_line(broker, text: str) -> None:
    end_s = time.monotonic() + 30
    while not _count_lines(broker, text):
        assert time.monotonic() < end_s, broker.tail(20_000)
        time.sleep(0.1)


@pytest.mark.parametrize("code", SHORTAGES)
def test_shortage_is_logged_counted_explained_and_ends_without_a_restart(ram, preload, code):
    faults = ram / "faults"
    broker = Brokerd(ram / "run", {"metrics.listener": "127.0.0.1:0"}, environment=environment(
        preload, ram / "run" / "data", faults=faults))
    with broker, Connection(broker.port, wait_s=30) as connection:
        topic = unique("short")
        create_topic(broker.port, topic)
        assert produce(connection, topic, batch())["error_code"] == 0
        faults.write_text(f"write /{topic}-0/ {code}\n")
        for _ in range(5):
            row = produce(connection, topic, batch())
            assert (row["error_code"], row["error_message"]) == (56, SHORTAGES[code])
        assert _failures(broker, topic) == 5
        _wait_line(broker, "writes to a log directory fail")
        faults.unlink()
        assert produce(connection, topic, batch())["error_code"] == 0
        _wait_line(broker, "writes to a log directory succeed again")
        assert _count_lines(broker, "writes to a log directory fail") == 1
        assert _failures(broker, topic) == 5


def test_a_disk_below_the_threshold_is_logged_counted_explained_and_recovers(small_disk, tmp_path):
    with Brokerd(tmp_path / "run", {"log.dir.min.free.bytes": RESERVE,
                                    "metrics.listener": "127.0.0.1:0"},
                 data_dir=small_disk / "data") as broker:
        topic = unique("threshold")
        create_topic(broker.port, topic)
        (small_disk / "ballast").write_bytes(bytes(24 * MIB))
        with Connection(broker.port, wait_s=30) as connection:
            count, code = _fill_until_refused(connection, topic, 1000)
            assert code == 56
            row = produce(connection, topic, batch([record(value=bytes(100_000))]))
            assert re.fullmatch(
                rf"The broker's disk has \d+ bytes free. Produce requests need more than {RESERVE}"
                r" \(log.dir.min.free.bytes\).", row["error_message"])
            assert _failures(broker, topic) == 2
            _wait_line(broker, "produce requests are rejected")
            line = next(line for line in broker.tail(20_000).splitlines()
                        if "produce requests are rejected" in line)
            assert f"directory={small_disk}" in line and f"threshold_bytes={RESERVE}" in line
            assert "free_bytes=" in line
            (small_disk / "ballast").unlink()
            _wait_line(broker, "produce requests are accepted again")
            assert produce(connection, topic, batch())["base_offset"] == count
            assert _count_lines(broker, "produce requests are rejected") == 1
        broker.kill()
