import gzip
import os
import re
import struct
import zlib
from pathlib import Path

import lz4.block
import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog._native.records.compress import (
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    CompressError,
    compress,
    decompress,
)

CORRUPT, LIMIT, CODEC = -1, -2, -3
CODECS = {"gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
EACH_CODEC = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
MIB = 1 << 20
TEXT = b"".join(b"line %d of a text that compresses\n" % i for i in range(20_000))
NOISE = zlib.compress(TEXT) * 8


def xerial(*blocks: bytes) -> bytes:
    return XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def error_of(codec: int, data: bytes, max_bytes: int = MIB) -> int:
    with pytest.raises(CompressError) as raised:
        decompress(codec, data, max_bytes)
    return raised.value.error


def rss_peak_grows_kib(work) -> int:
    """Return by how much `work` raises the peak resident memory.

    Return 0 under a sanitizer, which keeps freed memory.
    """
    if "san.so" in os.environ.get("LD_PRELOAD", ""):
        work()
        return 0
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current resident size
    before = rss_peak_kib()
    work()
    return rss_peak_kib() - before


def rss_peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


# ---- round trips


@EACH_CODEC
@pytest.mark.parametrize("level", [None, 1, 2, 3, 6, 9])
def test_compressed_bytes_inflate_to_the_original(codec, level):
    for data in (b"", b"a", TEXT, NOISE, bytes(3 * MIB)):
        assert decompress(codec, compress(codec, data, level), len(data)) == data


@EACH_CODEC
@given(data=st.binary(max_size=5000), level=st.sampled_from([None, 1, 4, 9]))
@settings(deadline=None)
def test_any_bytes_survive_each_codec(codec, data, level):
    assert decompress(codec, compress(codec, data, level), len(data)) == data


def test_no_codec_is_a_copy():
    assert compress(NONE, TEXT) == TEXT
    assert decompress(NONE, TEXT, len(TEXT)) == TEXT
    assert error_of(NONE, TEXT, len(TEXT) - 1) == LIMIT


@pytest.mark.parametrize("data", [b"", b"a", TEXT, NOISE], ids=["empty", "byte", "text", "noise"])
def test_other_libraries_read_what_we_compress(data):
    assert gzip.decompress(compress(GZIP, data)) == data
    assert gzip.decompress(compress(GZIP, data, 9)) == data
    assert lz4.frame.decompress(compress(LZ4, data)) == data
    assert zstandard.decompress(compress(ZSTD, data)) == data
    framed = compress(SNAPPY, data)
    assert framed[:16] == XERIAL
    blocks, at = [], 16
    while at < len(framed):
        (size,) = struct.unpack_from(">i", framed, at)
        blocks.append(snappy.decompress(framed[at + 4 : at + 4 + size]))
        at += 4 + size
    assert b"".join(blocks) == data


def test_we_read_what_other_libraries_compress():
    assert decompress(GZIP, gzip.compress(TEXT), MIB) == TEXT
    assert decompress(ZSTD, zstandard.ZstdCompressor(level=9).compress(TEXT), MIB) == TEXT
    assert decompress(SNAPPY, snappy.compress(TEXT), MIB) == TEXT
    for options in (
        {"content_checksum": True, "store_size": False},
        {"block_size": lz4.frame.BLOCKSIZE_MAX4MB, "block_checksum": True},
    ):
        framed = lz4.frame.compress(TEXT, block_linked=False, **options)
        assert decompress(LZ4, framed, MIB) == TEXT


def test_concatenated_streams_are_read_as_one():
    assert decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two"), MIB) == b"onetwo"
    assert (
        decompress(ZSTD, zstandard.compress(b"one") + zstandard.compress(b"two"), MIB) == b"onetwo"
    )
    twice = xerial(snappy.compress(b"one")) + xerial(snappy.compress(b"two"))
    assert decompress(SNAPPY, twice, MIB) == b"onetwo"


def test_levels_trade_time_for_size():
    assert len(compress(GZIP, TEXT, 9)) < len(compress(GZIP, TEXT, 1))
    assert len(compress(ZSTD, TEXT, 19)) < len(compress(ZSTD, TEXT, -5))
    assert len(compress(LZ4, TEXT, 12)) < len(compress(LZ4, TEXT))
    assert compress(LZ4, TEXT, 9) == compress(LZ4, TEXT), "Kafka's default level 9 is the fast mode"


@pytest.mark.memory
def test_a_zstd_stream_of_the_highest_level_is_read():
    compressor = zstandard.ZstdCompressor(level=22).compressobj()  # declares a window of 128 MiB
    framed = compressor.compress(TEXT) + compressor.flush()
    grown = rss_peak_grows_kib(lambda: decompress(ZSTD, framed, MIB))
    assert decompress(ZSTD, framed, MIB) == TEXT
    assert grown < 16 * 1024, "the window is touched only where output fills it"


# ---- rejected input


@EACH_CODEC
def test_output_respects_its_limit(codec):
    framed = compress(codec, TEXT)
    assert error_of(codec, framed, len(TEXT) - 1) == LIMIT
    assert error_of(codec, framed, 0) == LIMIT


@EACH_CODEC
def test_truncated_stream_is_rejected(codec):
    framed = compress(codec, TEXT[:5000])
    for size in range(len(framed)):
        try:
            out = decompress(codec, framed[:size], MIB)
        except CompressError as error:
            assert error.error == CORRUPT
        else:
            # Only snappy's framing has internal boundaries: the header by itself is an empty
            # stream.
            assert codec == SNAPPY and size == 16 and out == b""


@EACH_CODEC
def test_junk_is_rejected(codec):
    assert error_of(codec, b"this is no compressed stream at all") == CORRUPT
    assert error_of(codec, b"") == CORRUPT


@pytest.mark.parametrize("padding", [b"\x00", b"\x00" * 16, b"\x1f", b"\x00junk", b"\x1f\x8b"])
def test_bytes_after_a_gzip_or_lz4_stream_are_ignored(padding):
    for codec in (GZIP, LZ4):
        if codec == LZ4 or padding != b"\x1f\x8b":
            assert decompress(codec, compress(codec, b"good") + padding, MIB) == b"good"


@pytest.mark.parametrize("codec", [SNAPPY, ZSTD])
def test_bytes_after_a_snappy_or_zstd_stream_are_rejected(codec):
    assert error_of(codec, compress(codec, b"good") + b"\x00junk behind it") == CORRUPT


@EACH_CODEC
@given(
    data=st.binary(max_size=300),
    flips=st.lists(st.tuples(st.integers(0), st.integers(1, 255)), max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_damaged_streams_end_in_an_error_or_in_bounded_output(codec, data, flips):
    framed = bytearray(compress(codec, data * 5))
    for position, mask in flips:
        framed[position % len(framed)] ^= mask
    try:
        assert len(decompress(codec, bytes(framed), 10_000)) <= 10_000
    except CompressError as error:
        assert error.error in (CORRUPT, LIMIT)


def test_unknown_codec_is_rejected():
    assert error_of(5, b"x") == CODEC
    with pytest.raises(CompressError):
        compress(7, b"x")


def test_lz4_frames_that_javas_reader_rejects_are_rejected():
    linked = lz4.frame.compress(TEXT, block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB)
    assert error_of(LZ4, linked) == CORRUPT
    assert error_of(LZ4, lz4.block.compress(TEXT)) == CORRUPT


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


LZ4_HUGE = lz4.frame.compress(b"abc", block_linked=False, store_size=True)
HOSTILE = {
    "snappy that claims 4 GiB": (SNAPPY, varint(2**32 - 1) + b"\x00a" * 40),
    "xerial block length 2^31-1": (SNAPPY, XERIAL + b"\x7f\xff\xff\xff" + b"x" * 40),
    "xerial block length -1": (SNAPPY, XERIAL + b"\xff\xff\xff\xff" + b"x" * 40),
    "xerial version 0": (SNAPPY, XERIAL[:8] + bytes(8) + xerial(snappy.compress(b"x"))[16:]),
    "xerial block length 0": (SNAPPY, XERIAL + b"\x00\x00\x00\x00"),
    "xerial inner block that claims 2 GiB": (
        SNAPPY,
        xerial(varint(2**31 - 1) + b"\xfe\x01\x00" * 25),
    ),
    "lz4 content size 2^63": (
        LZ4,
        b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", 2**63) + LZ4_HUGE[14:],
    ),
    "zstd window 2^60": (ZSTD, b"\x28\xb5\x2f\xfd\x00\xff" + b"\x01\x00\x00"),
    "zstd content size 2^60": (
        ZSTD,
        b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**60) + b"\x01\x00\x00",
    ),
}


@pytest.mark.parametrize(("codec", "data"), HOSTILE.values(), ids=HOSTILE)
def test_declared_size_allocates_no_memory(codec, data):
    errors = []
    grown = rss_peak_grows_kib(lambda: errors.append(error_of(codec, data, 1 << 31)))
    assert errors == [CORRUPT]
    assert grown < 4 * 1024


@pytest.mark.memory
def test_decompression_bomb_is_stopped_in_constant_memory():
    zeros = bytes(64 * MIB)
    bombs = {codec: compress(codec, zeros) for codec in (GZIP, LZ4, ZSTD, SNAPPY)}
    bare = snappy.compress(zeros)
    del zeros

    def inflate_all():
        for codec, bomb in [*bombs.items(), (SNAPPY, bare)]:
            assert error_of(codec, bomb, 8 * MIB) == LIMIT

    # Python holds 8 MiB of output, and grows it by copying.
    assert rss_peak_grows_kib(inflate_all) < 20 * 1024
