"""Search in an offset index of the maximum size for a 1 GiB segment, compared with Python's bisect.
"""

import bisect
import random
import struct
from array import array

from bench.native import note_rate
from pylog._native.records.offset_index import search_offsets

ENTRIES = 262_144
WANTED = 100_000


def given() -> tuple:
    chance = random.Random(4711)
    offsets = [16 * i for i in range(ENTRIES)]
    index = b"".join(
        struct.pack(">ii", offset, 4096 * i % 2**31) for i, offset in enumerate(offsets)
    )
    return offsets, index, array("q", [chance.randrange(16 * ENTRIES) for _ in range(WANTED)])


def test_search(benchmark):
    _, index, wanted = given()
    counts = array("I", bytes(4 * WANTED))
    benchmark(search_offsets, index, wanted, counts)
    note_rate(benchmark, "searches/s", WANTED)


def test_search_bisect(benchmark):
    offsets, _, wanted = given()
    benchmark(lambda: [bisect.bisect_right(offsets, w) for w in wanted])
    note_rate(benchmark, "searches/s", WANTED)
