import glob
import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylog._native.log.log import DISK_NO_SYNC, DISK_SYSTEM, LogDir, StorageError
from pylog.metadata.image.image import Image, apply
from pylog.metadata.log.local_log import LocalLog, limits_of
from pylog.metadata.log.metadata_log import Conflict
from pylog.protocol import messages


def now_ms():
    return 1_700_000_000_000


def opened(path, checkpoint=None):
    return LocalLog(LogDir(str(path)), checkpoint, now_ms)


def topic(number, partitions=2):
    topic_id = (number + 1).to_bytes(16, "big")
    return [messages.TopicRecord(name=f"t{number}", topic_id=topic_id)] + [
        messages.PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[1], isr=[1],
                                 leader=1, leader_epoch=0, partition_epoch=0,
                                 directories=[bytes(15) + b"\x07"])
        for index in range(partitions)]


def folded(log):
    image = Image()
    for batch in log.read(0):
        image = apply(image, batch.records, batch.last_offset, batch.epoch)
    return image


def test_appended_records_are_read_after_a_restart(tmp_path):
    log = opened(tmp_path)
    epoch = log.elect(1)
    assert log.append(topic(1), epoch, 0) == 2
    assert log.append(topic(2), epoch, 3) == 5
    before = folded(log)
    del log
    again = opened(tmp_path)
    assert folded(again) == before and before.offset == 5
    assert [batch.last_offset for batch in again.read(3)] == [5]


def test_each_election_has_a_higher_epoch_also_after_a_restart(tmp_path):
    epochs = []
    for _ in range(3):
        log = opened(tmp_path)
        epochs.append(log.elect(1))
        log.append([messages.NoOpRecord()], epochs[-1], len(epochs) - 1)
        del log
    assert epochs == sorted(set(epochs)) and epochs[0] > 0


def test_late_append_is_rejected_without_effect(tmp_path):
    log = opened(tmp_path)
    epoch = log.elect(1)
    log.append(topic(1), epoch, 0)
    with pytest.raises(Conflict):
        log.append(topic(2), epoch, 2)
    with pytest.raises(Conflict):
        log.append(topic(2), epoch - 1, 3)
    assert folded(log).offset == 2


def test_a_clean_stop_is_opened_without_reading(tmp_path):
    log = opened(tmp_path)
    log.append(topic(1), log.elect(1), 0)
    checkpoint = log.close()
    del log
    again = opened(tmp_path, checkpoint)
    assert again._log.recovery_report() == (0, 0)
    assert set(folded(again).topics) == {"t1"}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), stretches=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_torn_tail_removes_only_incomplete_appends(
        tmp_path_factory, seed, stretches):
    path = tmp_path_factory.mktemp("torn")
    dice = random.Random(seed)
    log = opened(path)
    epoch = log.elect(1)
    images, sizes, end, number = [Image()], [0], 0, 0
    for topics in stretches:
        records = []
        for _ in range(topics):
            number += 1
            records += topic(number, dice.randrange(1, 4))
        end = log.append(records, epoch, end) + 1
        images.append(folded(log))
        sizes.append(log._log.size_bytes)
    del log
    file, = glob.glob(os.path.join(path, "__cluster_metadata-0", "*.log"))
    with open(file, "rb") as whole:
        data = whole.read()
    cut = dice.randrange(0, sizes[-1] + 1)
    os.truncate(file, cut)
    if dice.random() < 0.5:
        # After a power failure, zeros or garbage may follow the end.
        with open(file, "ab") as out:
            out.write(dice.choice([bytes(100), dice.randbytes(200)]))
    with open(file, "rb") as torn:
        # The garbage may happen to equal the truncated bytes.
        same = len(os.path.commonprefix([data, torn.read()]))
    survived = max(n for n, size in enumerate(sizes) if size <= same)
    again = opened(path)
    assert folded(again) == images[survived]
    again.append(topic(99), again.elect(1), images[survived].offset + 1)
    assert "t99" in folded(again).topics


def test_appends_after_a_failed_flush_get_the_first_error(tmp_path):
    directory = LogDir(str(tmp_path))
    log = LocalLog(directory, None, now_ms)
    epoch = log.elect(1)
    log.append(topic(1), epoch, 0)
    directory.set_disk(DISK_NO_SYNC)
    for disk in (DISK_NO_SYNC, DISK_SYSTEM):
        directory.set_disk(disk)
        with pytest.raises(StorageError) as raised:
            log.append(topic(2), epoch, 3)
        assert raised.value.code == 56


def test_append_interrupted_by_a_shortage_is_rolled_back(tmp_path):
    log = opened(tmp_path)
    epoch = log.elect(1)
    log.append(topic(1), epoch, 0)
    whole = log._log

    class Short:
        """Return a log whose next flush has no file descriptors."""

        def __init__(self, whole):
            self.whole = whole

        def __getattr__(self, name):
            return getattr(self.whole, name)

        def flush(self):
            raise StorageError(-1, 56, "descriptors are short")

    log._log = Short(whole)
    with pytest.raises(StorageError):
        log.append(topic(2), epoch, 3)
    log._log = whole
    assert set(folded(log).topics) == {"t1"}
    assert log.append(topic(3), epoch, 3) == 5
    assert set(folded(log).topics) == {"t1", "t3"}
    del log, whole
    assert set(folded(opened(tmp_path)).topics) == {"t1", "t3"}


def test_segments_of_the_metadata_log_are_closed_by_its_settings(tmp_path):
    limits = limits_of({"metadata.log.max.record.bytes.between.snapshots": 1 << 20,
                        "metadata.log.max.snapshot.interval.ms": 0,
                        "metadata.log.segment.bytes": 1000, "metadata.log.segment.ms": 10**9})
    log = LocalLog(LogDir(str(tmp_path)), None, now_ms, **limits)
    epoch = log.elect(1)
    for number in range(20):
        log.append(topic(number), epoch, 3 * number)
    assert len(glob.glob(f"{tmp_path}/__cluster_metadata-0/*.log")) > 3
    before = folded(log)
    assert len(before.topics) == 20
    log.close()
    assert folded(opened(tmp_path)) == before
