"""Binary search in the bytes of an offset index, compared with Python's bisect."""

import bisect
import random
import struct
from array import array

import pytest

from pylog._native.records.offset_index import search_offsets


@pytest.mark.parametrize("entries", [0, 1, 2, 3, 7, 64, 1000])
def test_index_search_counts_entries_at_or_below_the_offset(entries):
    chance = random.Random(entries)
    offsets = sorted(chance.sample(range(10 * entries + 10), entries))
    index = b"".join(struct.pack(">ii", offset, 100 * i) for i, offset in enumerate(offsets))
    wanted = array("q", [*range(-2, 10 * entries + 12), 2**31 - 1, 2**40, -(2**40)])
    counts = array("I", bytes(4 * len(wanted)))
    search_offsets(index, wanted, counts)
    assert list(counts) == [bisect.bisect_right(offsets, w) for w in wanted]


def test_index_search_rejects_short_buffers():
    with pytest.raises(ValueError):
        search_offsets(b"", array("q", [1, 2]), array("I", [0]))
