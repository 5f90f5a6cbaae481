"""Indexes of sealed segments are trusted below the recovery point.

Therefore both files are on disk before the recovery point passes them.
"""

import pytest

from pylog._native.log import replica_move
from tests.durability.simulated import SimulatedDisk
from tests.durability.test_log_cuts import COMPACTED, clean, keyed, opened
from tests.native.log.test_log import NOW, make


@pytest.fixture
def disk(preload, ram):
    return SimulatedDisk(preload, ram, "ab")


def indexes(disk, below):
    """Return the indexes of the segments that begin below an offset."""
    return {path.name: path.read_bytes() for path in (disk.root / "a/t-0").glob("*index")
            if int(path.stem) < below}


def held_after_a_cut(disk, one):
    """Check that a power cut preserves the indexes of sealed segments."""
    last = max(int(path.stem) for path in (disk.root / "a/t-0").glob("*.log"))
    before = indexes(disk, last)
    assert len(before) >= 4
    one.release()
    disk.power_cut(None)
    # Segments that compaction replaced may reappear.
    assert {name: data for name, data in indexes(disk, last).items() if name in before} == before


@pytest.mark.parametrize("index_interval", [1, 300])
def test_indexes_of_flushed_segments_survive_a_power_cut(disk, index_interval):
    one = opened(disk, {"internal.segment.bytes": 1_000, "index.interval.bytes": index_interval})
    for i in range(40):
        one.append(make(1, now=NOW + i), NOW)
    one.flush()
    held_after_a_cut(disk, one)


def test_indexes_of_compacted_segments_survive_a_power_cut(disk):
    one = opened(disk, COMPACTED)
    for i in range(40):
        keyed(one, b"k%d" % (i % 20))
    one.flush()
    clean(one)
    held_after_a_cut(disk, one)


def test_index_truncated_during_writes_is_on_disk_after_the_flush(disk):
    one = opened(disk, {"internal.segment.bytes": 1 << 20, "index.interval.bytes": 1})
    for i in range(1100):
        one.append(make(1, now=NOW + i), NOW)
    for path in (disk.root / "a/t-0").glob("*index"):
        with open(path, "r+b") as file:
            file.truncate(0)
    replica_move.seal(one, NOW)
    one.append(make(1), NOW)
    replica_move.seal(one, NOW)
    one.flush()
    # The first batch has no index entry.
    assert sorted(map(len, indexes(disk, 1).values())) == [1099 * 8, 1099 * 12]
    held_after_a_cut(disk, one)
