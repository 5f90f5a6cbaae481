"""`state.lmdb` entry by entry: stored entries, proof of damage, and temporary lack of resources."""

import errno
import json
import os
import signal
import struct
import subprocess
from types import SimpleNamespace

import lmdb
import pytest

from pylog._native.records.batch import crc32c
from pylog.log.partition_logs import Checkpoint
from pylog.metadata.image import state_store
from pylog.metadata.image.image import Image
from pylog.metadata.image.state_store import FILE, SUM, Store, StoreError

AT_REST = Checkpoint(5, 2, 4, 9, 3, b"segments")
IN_USE = Checkpoint(5, 2, 4, -1, -1, b"")
ONE, OTHER = (bytes(16), 0), (b"\xff" * 16, 7)


@pytest.fixture
def store(tmp_path):
    one = Store(str(tmp_path))
    yield one
    one.close()


# Entries.

def test_checkpoints_among_other_keys_are_read_and_removed_separately(store):
    with store.transaction(write=True) as txn:
        for key in (b"log", b"log0", b"lof/x", b"lph/y"):
            txn.put(key, b"another's")
    store.save(None, [(ONE, AT_REST), (OTHER, IN_USE)])
    assert store.load_checkpoints() == {ONE: AT_REST, OTHER: IN_USE}
    store.save(None, [], [ONE, (bytes(16), 1)])
    assert store.load_checkpoints() == {OTHER: IN_USE}


def test_partition_removed_and_added_in_one_step_exists(store):
    store.save(None, [(ONE, AT_REST)])
    store.save(None, [(ONE, IN_USE)], [ONE])
    assert store.load_checkpoints() == {ONE: IN_USE}


def test_only_offsets_of_unclean_logs_are_kept(store):
    for key in (ONE, OTHER, (bytes(16), 2)):
        store.save(None, [(key, AT_REST)])
    store.save(None, [((bytes(16), 3), AT_REST._replace(log_end_offset=0)),
                      ((bytes(16), 4), IN_USE)])
    store.save(None, [(ONE, AT_REST)], mark=[[1, 2]])
    assert store.load_checkpoints() == {
        ONE: AT_REST, OTHER: IN_USE, (bytes(16), 2): IN_USE, (bytes(16), 3): IN_USE,
        (bytes(16), 4): IN_USE}


def test_clean_logs_stay_without_a_mark(store):
    store.save(None, [(ONE, AT_REST)])
    store.save(None, [(OTHER, IN_USE)])
    assert store.load_checkpoints()[ONE] == AT_REST and store.take_clean_mark() == []


def test_an_empty_mark_is_a_mark_too(store):
    store.save(None, [(ONE, AT_REST)])
    store.save(None, [], mark=[])
    assert store.load_checkpoints() == {ONE: IN_USE} and store.take_clean_mark() == []


def test_image_is_kept_if_only_checkpoints_are_saved(store):
    store.save(Image(offset=7, epoch=3), [])
    store.save(None, [(ONE, IN_USE)])
    assert (store.load_image().offset, store.load_image().epoch) == (7, 3)


@pytest.mark.parametrize("blob", [
    b"", b"short", struct.pack(">qi", 1, 1) + b"{", struct.pack(">qi", 1, 1) + b"{}",
    struct.pack(">qi", 1, 1) + b"[]",
    struct.pack(">qi", 1, 1) + json.dumps({"states": [], "topics": [["a", "00", [4]]]}).encode()])
def test_unreadable_image_is_discarded_and_logged(store, caplog, blob):
    with store.transaction(write=True) as txn:
        txn.put(b"image", state_store._summed(blob))
    assert store.load_image() == Image()
    assert "the stored image is unreadable" in caplog.text


@pytest.mark.parametrize(("value", "found"), [
    (None, None), (b"", None), (b"\0\0\0", None), (b"\0\0\0\0", b""),
    (struct.pack(">I", crc32c(b"x")) + b"x", b"x"), (struct.pack(">I", crc32c(b"x")) + b"y", None),
    (struct.pack(">I", crc32c(b"x") ^ 1) + b"x", None)])
def test_a_value_counts_with_its_checksum_only(value, found):
    assert state_store._checked(value) == found


def test_store_metrics_end_when_it_is_closed(tmp_path):
    one = Store(str(tmp_path))
    before = one.metrics()
    one.save(None, [(ONE, AT_REST), (OTHER, AT_REST)])
    after = one.metrics()
    assert (before["entries"], after["entries"]) == (1, 3)
    assert after["map_bytes"] == 8 << 30 and after["readers"] <= 1
    assert 0 < after["used_bytes"] <= os.path.getsize(tmp_path / FILE)
    one.close()
    assert one.metrics() == {}


def test_only_a_file_of_another_format_is_emptied(tmp_path):
    for kept in (True, False):
        one = Store(str(tmp_path))
        one.save(None, [(ONE, AT_REST)])
        if not kept:
            with one.transaction(write=True) as txn:
                txn.put(b"format", b"1")
        one.close(clean=True)
        again = Store(str(tmp_path))
        assert again.load_checkpoints() == ({ONE: AT_REST} if kept else {})
        again.close(clean=True)


# When the file is checked.

@pytest.fixture
def probes(monkeypatch):
    found = []
    monkeypatch.setattr(Store, "_probe", lambda self: found.append(self._path))
    return found


def test_after_a_clean_stop_the_checksum_is_enough_and_holds_once(tmp_path, probes):
    Store(str(tmp_path)).close(clean=True)
    noted = (tmp_path / SUM).read_text()
    assert noted.split()[1] == str(os.path.getsize(tmp_path / FILE))
    Store(str(tmp_path)).close()
    assert probes == [] and not (tmp_path / SUM).exists()
    Store(str(tmp_path)).close()
    assert probes == [str(tmp_path / FILE)]


@pytest.mark.parametrize("noted", ["", "rubbish\n", "0123abcd 5", "0123abcd 5\n\n", "\u00e4 5\n"])
def test_incomplete_checksum_causes_a_file_check(tmp_path, probes, noted):
    Store(str(tmp_path)).close()
    (tmp_path / SUM).write_text(noted, encoding="utf-8")
    Store(str(tmp_path)).close()
    assert len(probes) == 1 and not (tmp_path / SUM).exists()


@pytest.mark.parametrize("empty", [True, False])
def test_missing_or_empty_file_is_not_checked(tmp_path, probes, empty):
    if empty:
        (tmp_path / FILE).touch()
    Store(str(tmp_path)).close()
    assert probes == []


def test_checksum_continues_across_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(state_store, "_SUM_READ_BYTES", 3)
    (tmp_path / "x").write_bytes(b"0123456789")
    assert state_store._sum(tmp_path / "x") == f"{crc32c(b'0123456789'):08x} 10\n"


# Results of the check.

def probed(monkeypatch, tmp_path, returncode, stdout=b"", stderr=b"", claims=False):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(
        returncode=returncode, stdout=stdout, stderr=stderr))
    monkeypatch.setattr(state_store, "_claims_more", lambda path: claims)
    one = Store.__new__(Store)
    one._path = str(tmp_path / FILE)
    one._probe()


def test_checked_file_is_accepted(monkeypatch, tmp_path):
    probed(monkeypatch, tmp_path, 0, claims=True)


@pytest.mark.parametrize(("returncode", "stdout", "stderr", "claims"), [
    (3, b"", b"keys do not rise\n", False),
    (4, b"looks\n", b"CorruptedError of a page\n", False),
    (4, b"", b"first\nInvalidError x", False),
    (-signal.SIGSEGV, b"looks\n", b"", False), (-signal.SIGBUS, b"looks\n", b"", False),
    (-signal.SIGABRT, b"looks\n", b"", False), (1, b"", b"MemoryError", True),
    (-signal.SIGKILL, b"looks\n", b"", True)])
def test_damage_is_the_checks_result_or_crash(
        monkeypatch, tmp_path, returncode, stdout, stderr, claims):
    with pytest.raises(lmdb.CorruptedError, match=f"reading it ended with {returncode}"):
        probed(monkeypatch, tmp_path, returncode, stdout, stderr, claims)


@pytest.mark.parametrize(("returncode", "stdout", "stderr", "lacks"), [
    (4, b"looks\n", b"MemoryError no room", False), (4, b"looks\n", b"", False),
    (-signal.SIGSEGV, b"", b"", True), (-signal.SIGKILL, b"looks\n", b"", True),
    (-signal.SIGTERM, b"looks\n", b"", True), (1, b"looks\n", b"ImportError", True),
    (signal.SIGSEGV, b"looks\n", b"", True), (5, b"", b"CorruptedError", True)])
def test_all_else_is_no_proof(monkeypatch, tmp_path, returncode, stdout, stderr, lacks):
    with pytest.raises(StoreError) as raised:
        probed(monkeypatch, tmp_path, returncode, stdout, stderr)
    assert isinstance(raised.value, state_store._Lacking) == lacks
    assert not isinstance(raised.value, lmdb.CorruptedError)


def pages(page_bytes, lasts, size):
    """Return LMDB's two meta pages, with these last pages."""
    data = bytearray(size)
    for number, last in enumerate(lasts):
        at = number * page_bytes
        data[at + 40:at + 44] = struct.pack("=I", page_bytes)
        data[at + 136:at + 144] = struct.pack("=Q", last)
    return bytes(data[:size])


@pytest.mark.parametrize(("data", "more"), [
    (pages(4096, (1, 0), 8192), False), (pages(4096, (0, 1), 8192), False),
    (pages(4096, (2, 0), 8192), True), (pages(4096, (0, 2), 8192), True),
    (pages(4096, (2, 2), 12288), False), (pages(4096, (2, 2), 12287), True),
    (pages(4096, (0,), 4096), False), (pages(4096, (1,), 4096), True), (b"", True),
    (pages(4096, (0,), 4095), True)])
def test_a_file_that_lacks_pages_claims_more_than_it_has(tmp_path, data, more):
    (tmp_path / "x").write_bytes(data)
    assert state_store._claims_more(tmp_path / "x") == more


# Handling of the file.

def refused_once(monkeypatch, error):
    check, left = Store._check, [error]

    def refuse(self):
        if left:
            raise left.pop()
        check(self)

    monkeypatch.setattr(Store, "_check", refuse)


@pytest.fixture
def filled(tmp_path):
    one = Store(str(tmp_path))
    one.save(None, [(ONE, AT_REST)])
    one.close()
    return tmp_path


@pytest.mark.parametrize(("error", "aside"), [
    (lmdb.CorruptedError("planted"), False), (lmdb.InvalidError("planted"), False),
    (lmdb.VersionMismatchError("planted"), False), (lmdb.Error("planted"), True),
    (lmdb.CorruptedError(os.strerror(errno.ENOMEM)), False)])
def test_damaged_file_is_replaced_and_kept_aside(
        filled, monkeypatch, error, aside):
    refused_once(monkeypatch, error)
    one = Store(str(filled))
    assert one.load_checkpoints() == {}
    one.close()
    assert (filled / f"{FILE}.aside").exists() == aside


@pytest.mark.parametrize("error", [
    state_store._Lacking("planted"), *(lmdb.Error(f"x: {os.strerror(code)}") for code in (
        errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EIO, errno.EACCES)),
    OSError(errno.EMFILE, "planted")])
def test_resource_shortage_at_the_start_keeps_the_file(filled, monkeypatch, error):
    refused_once(monkeypatch, error)
    before = (filled / FILE).read_bytes()
    with pytest.raises(StoreError):
        Store(str(filled))
    assert (filled / FILE).read_bytes() == before and os.listdir(filled) == [FILE]
