import os

import pytest

from pylog.metadata.image import snapshot
from pylog.metadata.image.image import Image, apply
from pylog.metadata.log.metadata_log import MetadataLog
from tests.metadata.image.test_state_store import image
from tests.metadata.node import Node


def test_image_is_restored_from_its_records():
    whole = image()
    assert apply(Image(), snapshot.records_of(whole), whole.offset, whole.epoch) == whole


def test_written_snapshot_is_readable_and_replaces_older_ones(tmp_path):
    kept = snapshot.records_of(image())
    snapshot.write(str(tmp_path), kept[:2], 50, 1, 7)
    snapshot.write(str(tmp_path), kept, 100, 3, 7)
    path, end, epoch = snapshot.newest(str(tmp_path))
    assert (end, epoch) == (100, 3)
    assert snapshot.read(path) == kept
    assert os.listdir(tmp_path) == ["00000000000000000100-0000000003.checkpoint"]


def test_a_damaged_snapshot_is_rejected(tmp_path):
    snapshot.write(str(tmp_path), snapshot.records_of(image()), 100, 3, 7)
    path, _, _ = snapshot.newest(str(tmp_path))
    with open(path, "r+b") as file:
        file.seek(-30, os.SEEK_END)
        byte = file.read(1)
        file.seek(-31, os.SEEK_END)
        file.write(bytes([byte[0] ^ 0xFF, byte[0] ^ 0x55]))
    with pytest.raises(ValueError):
        snapshot.read(path)


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("crash", [False, True])
def test_a_long_log_is_replaced_by_a_snapshot_and_its_tail(tmp_path, monkeypatch, crash, forget):
    monkeypatch.setattr(MetadataLog, "records_between_snapshots", 20)
    node = Node(tmp_path)
    for number in range(12):
        node.create(f"t{number}", partitions=3)
    node.delete("t3")
    node.producer_id()
    before = node.image
    assert node.service._log.snapshot_end > 20
    assert node.service._log._log.start_offset == node.service._log.snapshot_end
    node.crash() if crash else node.stop()
    if forget:
        os.unlink(tmp_path / "state.lmdb")
    node = Node(tmp_path)
    assert node.image.topics.keys() == before.topics.keys()
    assert node.image.next_producer_id == before.next_producer_id
    node.stop()


def test_snapshot_on_a_full_disk_leaves_no_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(snapshot.os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        snapshot.write(str(tmp_path), [], 5, 1, 0)
    assert list(tmp_path.iterdir()) == []
