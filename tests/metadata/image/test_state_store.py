import errno
import os
import random
import subprocess
import sys

import lmdb
import pytest

from pylog.log.errors import StartError
from pylog.log.partition_logs import Checkpoint
from pylog.metadata.image import state_store
from pylog.metadata.image.image import Image, apply
from pylog.metadata.image.state_store import FILE, SUM, Store, StoreError, _summed
from pylog.protocol import messages
from tests.fixtures.child_environment import ENVIRONMENT
from tests.metadata.controller.partitions.test_topics import cluster, create, topic
from tests.metadata.image.test_image import security_records
from tests.metadata.node import Node


def image():
    made, _ = create(cluster(2), topic("a", partitions=3, configs={"retention.ms": "5"}),
                     topic("b"))
    more = [messages.ProducerIdsRecord(next_producer_id=2000), *security_records()]
    return apply(made, more, made.offset + len(more), 4)


def test_an_image_is_read_back_equal(tmp_path):
    store = Store(str(tmp_path))
    store.save(image(), [])
    store.close()
    again = Store(str(tmp_path)).load_image()
    assert again == image()
    assert again.topics["a"] is again.topics_by_id[again.topics["a"].id]


def test_empty_store_returns_nothing(tmp_path):
    store = Store(str(tmp_path))
    assert store.load_image() == Image()
    assert store.load_checkpoints() == {} and store.take_clean_mark() == []


def test_checkpoints_are_stored_by_topic_id_and_partition(tmp_path):
    store = Store(str(tmp_path))
    first = Checkpoint(5, 0, 5, 5, 0, b"\x01" * 48)
    second = Checkpoint(7, 2, 6, -1, -1, b"")
    one, other = (bytes(15) + b"\x01", 0), (bytes(15) + b"\x02", 70_000)
    store.save(None, [(one, first), (other, second)])
    assert store.load_checkpoints() == {one: first, other: second}
    store.save(None, [(other, first)], gone=[one])
    assert store.load_checkpoints() == {other: first}


def test_clean_stop_mark_is_consumed_once(tmp_path):
    store = Store(str(tmp_path))
    store.save(image(), [], mark=[[1, 2]])
    assert store.take_clean_mark() == [[1, 2]]
    assert store.take_clean_mark() == []


def test_unreadable_file_is_replaced(tmp_path):
    (tmp_path / FILE).write_bytes(os.urandom(100_000))
    store = Store(str(tmp_path))
    assert store.load_image() == Image()
    store.save(image(), [])
    assert store.load_image() == image()


@pytest.mark.parametrize("left", [-1, 0.5, 9000, 8191, 4096, 100, 0])
def test_a_file_that_was_cut_short_is_replaced(tmp_path, left):
    store = Store(str(tmp_path))
    store.save(image(), [((bytes([n]) * 16, 0), Checkpoint(n, 0, 0, 0, 0, bytes(3000)))
                         for n in range(100)])
    store.close()
    size = os.path.getsize(tmp_path / FILE)
    os.truncate(tmp_path / FILE, size - 1 if left < 0 else int(left * size) if left < 1 else left)
    store = Store(str(tmp_path))
    assert store.load_image() == Image() and store.load_checkpoints() == {}
    store.save(image(), [])
    assert store.load_image() == image()
    store.close()


def test_image_of_another_format_is_ignored(tmp_path):
    store = Store(str(tmp_path))
    with store._env.begin(write=True) as txn:
        txn.put(b"image", _summed(b"\0" * 12 + b'{"topics":7}'))
    assert store.load_image() == Image()


def test_entries_with_a_wrong_checksum_are_ignored(tmp_path):
    store = Store(str(tmp_path))
    key = (bytes(15) + b"\x01", 3)
    store.save(image(), [(key, Checkpoint(5, 0, 5, 5, 0, b"\x01" * 48))], mark=[[1, 2]])
    with store._env.begin(write=True) as txn:
        for name, value in list(txn.cursor()):
            if name != b"format":
                txn.put(name, value[:-1] + bytes([value[-1] ^ 1]))
    assert (store.load_image(), store.load_checkpoints()) == (Image(), {})
    assert store.take_clean_mark() == []


def filled(path, clean):
    store = Store(str(path))
    store.save(image(), [((bytes([n]) * 16, n), Checkpoint(n, 0, 0, 0, 0, bytes([n]) * 3000))
                         for n in range(100)])
    # Leave free pages behind.
    store.save(image(), [], gone=[(bytes([n]) * 16, n) for n in range(0, 100, 2)])
    store.close(clean)
    return {(bytes([n]) * 16, n) for n in range(1, 100, 2)}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_pages_are_found_before_they_are_used(tmp_path, seed, clean):
    chance = random.Random(seed)
    keys = filled(tmp_path, clean)
    data = bytearray((tmp_path / FILE).read_bytes())
    page = chance.randrange(2, len(data) // 4096) * 4096
    spoiled = page + chance.randrange(16) if seed % 2 else page
    data[spoiled:page + 4096] = chance.randbytes(page + 4096 - spoiled)
    (tmp_path / FILE).write_bytes(data)
    # In a separate process: an undetected fault would end this one.
    ended = subprocess.run([sys.executable, "-c", """
import sys
from pylog.metadata.image.state_store import Store
from pylog.metadata.image.image import Image
store = Store(sys.argv[1])
found = store.load_checkpoints()
assert all(entry == (n, 0, 0, 0, 0, bytes([n]) * 3000) for (_, n), entry in found.items())
print(len(found), len(store.load_image().topics))
for n in range(50):
    store.save(Image(), [])
""", str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    checkpoints, topics = map(int, ended.stdout.split())
    if clean:
        assert (checkpoints, topics) == (0, 0)
    assert checkpoints <= len(keys) and topics in (0, 2)


def test_a_file_that_was_changed_since_a_clean_stop_is_replaced(tmp_path):
    filled(tmp_path, True)
    with open(tmp_path / FILE, "r+b") as file:
        file.seek(-5000, 2)
        file.write(b"x")
    assert Store(str(tmp_path)).load_checkpoints() == {}


@pytest.mark.parametrize("clean", [True, False])
def test_intact_file_is_kept(tmp_path, clean):
    keys = filled(tmp_path, clean)
    for _ in range(2):
        store = Store(str(tmp_path))
        assert not (tmp_path / SUM).exists()
        assert store.load_checkpoints().keys() == keys and store.load_image() == image()
        store.close(clean)


# ---- temporary lack of resources is not damage ------------------------------------------------

LIMITED = """
import resource, sys
from pylog.metadata.image.state_store import Store, StoreError
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    Store(sys.argv[1])
except StoreError as error:
    print("lacks", error)
"""


@pytest.mark.parametrize("clean", [True, False])
def test_file_is_kept_if_the_start_runs_out_of_memory(tmp_path, clean):
    keys = filled(tmp_path, clean)
    before = (tmp_path / FILE).read_bytes()
    ended = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True,
                           text=True, env=ENVIRONMENT)
    assert ended.stdout.startswith("lacks"), ended.stderr
    assert (tmp_path / FILE).read_bytes() == before
    assert Store(str(tmp_path)).load_checkpoints().keys() == keys


def test_a_node_that_lacks_memory_for_the_map_does_not_start_and_loses_nothing(
        tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.create("a")
    node.stop()
    before = (tmp_path / FILE).read_bytes()
    with monkeypatch.context() as patched:
        def refused(*args, **fields):
            raise lmdb.MemoryError(os.strerror(errno.ENOMEM))

        patched.setattr(lmdb, "open", refused)
        with pytest.raises(StartError, match="state.lmdb cannot be used"):
            Node(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before
    node = Node(tmp_path)
    assert "a" in node.image.topics
    node.stop()


@pytest.mark.parametrize("program", [
    "raise MemoryError", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "import os; os.abort()", "import sys; sys.exit(1)"])
def test_failed_probe_keeps_the_file(tmp_path, monkeypatch, program):
    keys = filled(tmp_path, False)
    with monkeypatch.context() as patched:
        patched.setattr(state_store, "_PROBE", program)
        with pytest.raises(StoreError):
            Store(str(tmp_path))
    assert Store(str(tmp_path)).load_checkpoints().keys() == keys


@pytest.mark.parametrize("error", [
    OSError(errno.ENOMEM, "no memory"), OSError(errno.EAGAIN, "no process")])
def test_a_probe_that_cannot_be_started_is_no_proof(tmp_path, monkeypatch, error):
    keys = filled(tmp_path, False)

    def refused(*args, **fields):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", refused)
        with pytest.raises(StoreError):
            Store(str(tmp_path))
    assert Store(str(tmp_path)).load_checkpoints().keys() == keys


def test_failed_checksum_keeps_the_file(tmp_path, monkeypatch):
    keys = filled(tmp_path, True)

    def refused(path):
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(state_store, "_sum", refused)
        with pytest.raises(StoreError):
            Store(str(tmp_path))
    assert Store(str(tmp_path)).load_checkpoints().keys() == keys


def test_slow_file_check_moves_the_file_aside(tmp_path, monkeypatch):
    filled(tmp_path, False)
    before = (tmp_path / FILE).read_bytes()
    monkeypatch.setattr(state_store, "_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(state_store, "PROBE_SECONDS_MAX", 0.2)
    synced = []
    monkeypatch.setattr(state_store, "sync_directory", lambda path: synced.append(
        (path, (tmp_path / FILE).exists())))
    store = Store(str(tmp_path))
    assert synced == [(str(tmp_path), False)]
    assert store.load_checkpoints() == {}
    store.close()
    assert (tmp_path / f"{FILE}.aside").read_bytes() == before


@pytest.mark.parametrize("seed", range(8))
def test_damaged_meta_pages_are_no_lack_of_memory(tmp_path, seed):
    chance = random.Random(seed)
    filled(tmp_path, False)
    data = bytearray((tmp_path / FILE).read_bytes())
    for page in (0, 4096):
        # The number of the last page, and another change.
        data[page + 136:page + 144] = chance.randbytes(8)
        at = page + chance.randrange(16, 152)
        data[at:at + 4] = chance.randbytes(4)
    (tmp_path / FILE).write_bytes(data)
    store = Store(str(tmp_path))
    assert store.load_image() == Image()
    store.close()
