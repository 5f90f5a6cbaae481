"""Kafka's codecs over 1 MiB of JSON-like lines: ours compared with the Python packages."""

import gzip
from functools import partial

import lz4.frame
import pytest
import snappy
import zstandard

from bench.native import note_rate
from pylog._native.records.compress import GZIP, LZ4, SNAPPY, ZSTD, compress, decompress

SIZE = 1 << 20
LINES = b"".join(
    b'{"id":%d,"user":"u%d","event":"page_view","path":"/item/%d","ms":%d}\n'
    % (i, i * 7919 % 5003, i * 31 % 977, i * 104729 % 9973)
    for i in range(20_000)
)[:SIZE]
OURS = {"gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
DEFLATE = {
    "gzip": lambda data: gzip.compress(data, 6),
    "snappy": snappy.compress,
    "lz4": lz4.frame.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
INFLATE = {
    "gzip": gzip.decompress,
    "snappy": snappy.decompress,
    "lz4": lz4.frame.decompress,
    "zstd": zstandard.ZstdDecompressor().decompress,
}
BY = pytest.mark.parametrize("by", ["ours", "package"])
EACH_CODEC = pytest.mark.parametrize("codec", OURS)


@BY
@EACH_CODEC
def test_deflate(benchmark, codec, by):
    benchmark.group = f"deflate {codec}"
    work = DEFLATE[codec] if by == "package" else partial(compress, OURS[codec])
    out = benchmark(work, LINES)
    note_rate(benchmark, "GB/s", SIZE / 1e9)
    benchmark.extra_info["ratio"] = round(SIZE / len(out), 2)


@BY
@EACH_CODEC
def test_inflate(benchmark, codec, by):
    benchmark.group = f"inflate {codec}"
    framed = DEFLATE[codec](LINES) if by == "package" else compress(OURS[codec], LINES)
    work = INFLATE[codec] if by == "package" else partial(decompress, OURS[codec], max_bytes=SIZE)
    assert benchmark(work, framed) == LINES
    note_rate(benchmark, "GB/s", SIZE / 1e9)
