"""Files cut, zeroed, flipped or deleted between two runs.

Derived files are rebuilt, a torn tail is cut at the last good batch, and no earlier batch is lost.
"""

import contextlib
import shutil

import pytest

from tests.fixtures.brokers import Brokerd
from tests.native.log.test_restart_checkpoint import remembered
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection, batch, record
from tests.wire.records import batches
from tests.wire.talk import append, create_topic, fetch, produce, unique

BATCHES = 30
RECORDS = 4


def _fill(broker: Brokerd, acks: int = 1, **configs) -> str:
    topic = unique("damaged")
    create_topic(broker.port, topic, **configs)
    with Connection(broker.port) as connection:
        for number in range(BATCHES):
            rows = [record(b"k", b"%d" % number * 200, offset_delta=delta)
                    for delta in range(RECORDS)]
            row = produce(connection, topic, batch(
                rows, codec=number % 5, producer_id=99, producer_epoch=0,
                base_sequence=number * RECORDS), acks=acks)
            assert row["error_code"] == 0
    return topic


def _read(broker: Brokerd, topic: str) -> tuple[int, list[int]]:
    """Return (high watermark, base offsets) of the whole log, with verified checksums."""
    bases, offset = [], 0
    with Connection(broker.port) as connection:
        while True:
            row = fetch(connection, topic, offset)
            got = list(batches(row["records"] or b""))
            if not got:
                return row["high_watermark"], bases
            bases += [one.base_offset for one in got]
            offset = got[-1].last_offset + 1


def _active_log(broker: Brokerd, topic: str):
    return sorted((broker.data_dir / f"{topic}-0").glob("*.log"))[-1]


def _last_batch(path) -> tuple[int, int]:
    """Return (position, end) of a segment's last batch; trailing zeros do not count."""
    data, at, last = path.read_bytes(), 0, (0, 0)
    for one in batches(data):
        last = (at, at + one.size)
        at += one.size
    return last


def _truncate(path, position, end):
    with open(path, "r+b") as file:
        file.truncate(end - 7)


def _truncate_header(path, position, end):
    with open(path, "r+b") as file:
        file.truncate(position + 20)


def _zero(path, position, end):
    with open(path, "r+b") as file:
        file.seek(end - 30)
        file.write(bytes(30))


def _flip(path, position, end):
    with open(path, "r+b") as file:
        file.seek(position + 70)
        byte = file.read(1)[0]
        file.seek(position + 70)
        file.write(bytes([byte ^ 0x10]))


def _zero_header(path, position, end):
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(bytes(61))


def _long_length(path, position, end):
    with open(path, "r+b") as file:
        file.seek(position + 8)
        file.write(b"\x7f\xff\xff\xf0")


@pytest.mark.parametrize("damage", [_truncate, _truncate_header, _zero, _flip, _zero_header,
                                    _long_length], ids=lambda damage: damage.__name__[1:])
def test_torn_tail_is_truncated_at_the_last_good_batch(ram, damage):
    with Brokerd(ram) as broker:
        topic = _fill(broker)
        broker.kill()
        path = _active_log(broker, topic)
        position, end = _last_batch(path)
        damage(path, position, end)
        broker.start()
        good = (BATCHES - 1) * RECORDS
        assert _read(broker, topic) == (good, list(range(0, good, RECORDS)))
        assert append(broker.port, topic, batch()) == good
        assert _read(broker, topic)[0] == good + 1


@pytest.mark.parametrize("tail", [b"\xff" * 100, b"\0" * 5000, b"\0" * 8 + b"\0\0\0\x20junk"],
                         ids=["ones", "zeros", "a-started-batch"])
def test_bytes_after_the_last_batch_are_truncated(ram, tail):
    with Brokerd(ram) as broker:
        topic = _fill(broker)
        broker.kill()
        path = _active_log(broker, topic)
        _, end = _last_batch(path)
        with open(path, "r+b") as file:
            file.truncate(end)
            file.seek(end)
            file.write(tail)
        broker.start()
        everything = BATCHES * RECORDS
        assert _read(broker, topic) == (everything, list(range(0, everything, RECORDS)))
        assert append(broker.port, topic, batch()) == everything


def _no_index(folder):
    for path in [*folder.glob("*.index"), *folder.glob("*.timeindex")]:
        path.unlink()


def _junk_index(folder):
    for path in [*folder.glob("*.index"), *folder.glob("*.timeindex")]:
        path.write_bytes(b"\xde\xad\xbe\xef" * 300)


def _odd_index(folder):
    for path in [*folder.glob("*.index"), *folder.glob("*.timeindex")]:
        path.write_bytes(path.read_bytes()[:13])


def _no_snapshot(folder):
    for path in folder.glob("*.snapshot"):
        path.unlink()


def _junk_snapshot(folder):
    for path in folder.glob("*.snapshot"):
        path.write_bytes(b"junk" * 20)


def _no_epochs(folder):
    (folder / "leader-epoch-checkpoint").unlink(missing_ok=True)


def _junk_epochs(folder):
    (folder / "leader-epoch-checkpoint").write_bytes(b"not a checkpoint\n")


@pytest.mark.parametrize("clean", [True, False], ids=["after-stop", "after-kill"])
@pytest.mark.parametrize("damage", [_no_index, _junk_index, _odd_index, _no_snapshot,
                                    _junk_snapshot, _no_epochs, _junk_epochs],
                         ids=lambda damage: damage.__name__[1:])
def test_derived_files_are_rebuilt(ram, damage, clean):
    with Brokerd(ram, {"log.index.interval.bytes": 600}) as broker:
        topic = _fill(broker, segment_bytes=1 << 20)
        broker.stop() if clean else broker.kill()
        damage(broker.data_dir / f"{topic}-0")
        broker.start()
        everything = BATCHES * RECORDS
        assert _read(broker, topic) == (everything, list(range(0, everything, RECORDS)))
        with Connection(broker.port) as connection:
            for offset in range(0, everything, 7):
                first = next(batches(fetch(connection, topic, offset)["records"]))
                assert first.base_offset == offset - offset % RECORDS
            found = ask(connection, raw.LIST_OFFSETS, 7, replica_id=-1, topics=[
                {"name": topic, "partitions": [{"partition_index": 0, "timestamp": 1}]}])
            assert found["topics"][0]["partitions"][0]["offset"] == 0
            again = produce(connection, topic, batch(
                [record(offset_delta=delta) for delta in range(RECORDS)], producer_id=99,
                producer_epoch=0, base_sequence=(BATCHES - 1) * RECORDS))
            assert (again["error_code"], again["base_offset"]) == (0, everything - RECORDS)


@pytest.mark.parametrize("clean", [True, False], ids=["after-stop", "after-kill"])
@pytest.mark.parametrize("damage", ["deleted", "junk"])
def test_broker_loses_no_records_without_its_lmdb_file(ram, clean, damage):
    with Brokerd(ram) as broker:
        topic = _fill(broker)
        other = unique("other")
        identity = create_topic(broker.port, other, 5, retention_ms=777000)
        with Connection(broker.port) as connection:
            cluster = ask(connection, 60, 0)["cluster_id"]
        broker.stop() if clean else broker.kill()
        state = broker.data_dir / "state.lmdb"
        assert state.exists()
        if damage == "junk":
            data = state / "data.mdb" if state.is_dir() else state
            data.write_bytes(b"\xde\xad\xbe\xef" * 4096)
        elif state.is_dir():
            shutil.rmtree(state)
        else:
            state.unlink()
        broker.start()
        everything = BATCHES * RECORDS
        assert _read(broker, topic) == (everything, list(range(0, everything, RECORDS)))
        with Connection(broker.port) as connection:
            assert ask(connection, 60, 0)["cluster_id"] == cluster
            row = ask(connection, raw.METADATA, 12, topics=[{"name": other, "topic_id": None}],
                      allow_auto_topic_creation=False)["topics"][0]
        assert (row["topic_id"], len(row["partitions"])) == (identity, 5)
        assert append(broker.port, topic, batch()) == everything


def test_damage_in_flushed_data_is_reported_and_not_truncated(ram):
    """Damage in the middle is reported, never turned into a shorter log."""
    with Brokerd(ram) as broker:
        topic = _fill(broker, acks=-1)
        broker.stop()
        path = _active_log(broker, topic)
        first_end = next(batches(path.read_bytes())).size
        with open(path, "r+b") as file:
            file.seek(first_end + 65)
            file.write(b"\xa5\x5a")
        broker.start()
        with Connection(broker.port) as connection:
            row = fetch(connection, topic, (BATCHES - 1) * RECORDS)
            assert (row["error_code"], row["high_watermark"]) == (0, BATCHES * RECORDS)


@pytest.mark.parametrize("how", ["after-stop", "after-start-and-kill", "after-kill"])
def test_records_after_damage_are_readable(ram, how):
    with remembered(ram / "probe") if how == "after-kill" else contextlib.nullcontext():
        pass
    with Brokerd(ram) as broker:
        topic = _fill(broker, acks=-1)
        path = _active_log(broker, topic)
        if how == "after-kill":
            broker.kill()
        else:
            broker.stop()
        sizes = [one.size for one in batches(path.read_bytes())]
        if how == "after-start-and-kill":
            broker.start()
            broker.kill()
        with open(path, "r+b") as file:
            file.seek(sum(sizes[:5]))
            file.write(bytes(61))
        broker.start()
        with Connection(broker.port) as connection:
            for number in [*range(5), *range(6, BATCHES)]:
                row = fetch(connection, topic, number * RECORDS, partition_bytes_max=1)
                assert row["error_code"] == 0
                assert next(batches(row["records"])).base_offset == number * RECORDS
            # A reader hits the damage from an earlier offset or by fetching the damaged offset.
            for offset in (5 * RECORDS, 5 * RECORDS + 1):
                row = fetch(connection, topic, offset, partition_bytes_max=1)
                assert (row["error_code"], row["records"] or b"") == (2, b"")
        assert append(broker.port, topic, batch()) == BATCHES * RECORDS
        broker.stop()
        assert f"topic={topic}" in "".join(
            line for line in broker.log.read_text().splitlines() if "damaged" in line)
