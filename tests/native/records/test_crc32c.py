import crc32c as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pylog._native.records.batch import crc32c, crc32c_portable

BOTH = pytest.mark.parametrize("compute", [crc32c, crc32c_portable], ids=["fast", "portable"])


@BOTH
def test_rfc_3720_vectors(compute):
    assert compute(b"123456789") == 0xE3069283
    assert compute(bytes(32)) == 0x8A9136AA
    assert compute(b"\xff" * 32) == 0x62A8AB43
    assert compute(b"") == 0


@BOTH
def test_every_short_length_and_alignment_equals_the_reference(compute):
    data = bytes((i * 131 + 7) & 0xFF for i in range(600))
    for start in range(8):
        for size in range(300):
            piece = memoryview(data)[start : start + size]
            assert compute(piece) == reference.crc32c(piece), (start, size)


@BOTH
@pytest.mark.parametrize("size", [1023, 4095, 4096, 4097, 16384, 65537, 3_000_001])
def test_long_inputs_equal_the_reference(compute, size):
    data = (b"0123456789abcdefghijklmnopqrstuvwxyz" * (size // 36 + 1))[:size]
    assert compute(data) == reference.crc32c(data)


@BOTH
@given(data=st.binary(max_size=2000), cut=st.integers(0, 2000), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_checksum_continues_over_chunks(compute, data, cut, seed):
    whole = compute(data, seed)
    assert whole == reference.crc32c(data, seed)
    assert compute(data[cut:], compute(data[:cut], seed)) == whole
