"""CRC-32C: ours (ISA-L), the crc32c package, the floor, and the portable fallback."""

import crc32c as package
import pytest

from bench.native import note_rate
from pylog._native.records import batch

COMPUTE = {"ours": batch.crc32c, "package": package.crc32c, "portable": batch.crc32c_portable}


@pytest.mark.parametrize("size", [61, 1024, 16 * 1024, 128 * 1024, 1 << 20])
@pytest.mark.parametrize("name", COMPUTE)
def test_crc32c(benchmark, name, size):
    benchmark.group = f"crc32c {size} B"
    data = bytes(i * 131 & 0xFF for i in range(size))
    compute = COMPUTE[name]
    repeats = range(max(1, (1 << 20) // size))

    def work():
        for _ in repeats:
            compute(data)

    benchmark(work)
    note_rate(benchmark, "GB/s", len(repeats) * size / 1e9)
