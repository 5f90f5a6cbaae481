import crc32c
import numpy as np
import pytest

from spark import crc, records
from spark.records import Content, ContentError

SHAPES = ["24", "25", "100", "1024", "uniform:24:300", "normal:200:60"]


def split(made):
    return [made.data[a:b].tobytes() for a, b in zip(made.offsets, made.offsets[1:])]


def joined(values):
    data = np.frombuffer(b"".join(values), np.uint8)
    return data, np.cumsum([0, *map(len, values)]).astype(np.int32)


def check(content, values, counts=None):
    return records.checked(content, counts or {0: 1000}, *joined(values))


@pytest.mark.parametrize("shape", SHAPES)
def test_value_ends_with_the_crc32c_of_its_prefix(shape):
    for value in split(records.made(Content(7, shape), 3, 0, 200)):
        assert crc32c.crc32c(value[:-4]) == int.from_bytes(value[-4:], "little")


@pytest.mark.parametrize("shape", SHAPES)
def test_generated_records_are_valid(shape):
    content = Content(11, shape, keys=50, skew=1.2)
    made = records.made(content, 2, 500, 1000)
    found = records.checked(content, {2: 1500}, made.data, made.offsets)
    assert found.good.all()
    assert (found.sequences == made.sequences).all() and (found.generators == 2).all()
    offsets = np.arange(0, 12 * 1001, 12)
    assert records.keys_match(content, found, made.key_data, offsets).all()


def test_records_are_generated_independently():
    content = Content(5, "uniform:30:90", keys=10)
    whole = split(records.made(content, 1, 0, 300))
    assert split(records.made(content, 1, 137, 20)) == whole[137:157]


def test_content_is_the_same_on_every_machine():
    value = split(records.made(Content(1, "40", keys=5, skew=1.0), 2, 3, 1))[0]
    assert value.hex() == ("50594c31e9b713510200000003000000000000002ec09a2e2e2e2e2c"
                           "2e2ee82ec094c82ef9b9d983")


@pytest.mark.parametrize("place", [0, 5, 9, 15, 30, -1])
def test_any_changed_byte_is_corruption(place):
    values = split(records.made(Content(7), 0, 0, 10))
    broken = bytearray(values[4])
    broken[place] ^= 0x40
    found = check(Content(7), [*values[:4], bytes(broken), *values[5:]])
    assert found.corrupted.tolist() == [row == 4 for row in range(10)]
    assert not found.foreign.any()


def test_a_value_cut_short_or_empty_is_corruption():
    values = split(records.made(Content(7), 0, 0, 3))
    found = check(Content(7), [values[0][:50], b"", values[2]])
    assert found.corrupted.tolist() == [True, True, False]


def test_wrong_seed_makes_every_record_unexpected():
    found = check(Content(8), split(records.made(Content(7), 0, 0, 10)))
    assert found.foreign.all() and not found.corrupted.any()


def test_a_sequence_beyond_the_load_is_foreign():
    values = split(records.made(Content(7), 0, 995, 10))
    assert check(Content(7), values).foreign.tolist() == [False] * 5 + [True] * 5
    assert check(Content(7), values, {1: 1000}).foreign.all()


def test_foreign_key_is_detected():
    content = Content(7, keys=1000)
    made = records.made(content, 0, 0, 10)
    found = records.checked(content, {0: 10}, made.data, made.offsets)
    keys = made.key_data.copy().reshape(-1, 12)
    keys[3] = keys[2]
    match = records.keys_match(content, found, keys.reshape(-1), np.arange(0, 132, 12))
    assert np.flatnonzero(~match).tolist() == [3]


def test_sizes_have_the_requested_distribution():
    sequences = np.arange(100_000)
    even = records.sizes(Content(1, "uniform:100:200"), 0, sequences)
    assert even.min() == 100 and even.max() == 200 and abs(even.mean() - 150) < 1
    bell = records.sizes(Content(1, "normal:1000:100"), 0, sequences)
    assert abs(bell.mean() - 1000) < 3 and abs(bell.std() - 100) < 3


def test_skewed_keys_follow_zipf():
    found = records.keys(Content(1, keys=1000, skew=1.0), 0, np.arange(200_000))
    counts = np.bincount(found, minlength=1000)
    assert 1.8 < counts[0] / counts[1] < 2.2 and 9 < counts[0] / counts[9] < 11
    even = np.bincount(records.keys(Content(1, keys=100), 0, np.arange(200_000)))
    assert even.min() > 1700 and even.max() < 2300


@pytest.mark.parametrize("given", [{"sizes": "10"}, {"sizes": "uniform:100"}, {"sizes": "x"},
                                   {"sizes": "uniform:200:100"}, {"keys": -1}, {"skew": -0.5}])
def test_invalid_load_description_is_rejected_in_one_line(given):
    with pytest.raises(ContentError) as refused:
        Content(1, **given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("length", [0, 1, 4, 31, 1000])
def test_crc_behind_a_prefix_equals_crc_of_the_whole(length):
    pool = np.random.default_rng(3).integers(0, 256, 64 * 64, dtype=np.uint8)
    states = crc.prefixes(pool)
    head = np.arange(20, dtype=np.uint8)
    state = crc.extended(np.full(1, 0xFFFFFFFF, np.uint32), head.view("<u4")[None, :])
    state = crc.shifted(state ^ states[9], np.array([length])) ^ states[9 + length] ^ crc.ONES
    assert int(state[0]) == crc32c.crc32c(head.tobytes() + pool[9:9 + length].tobytes())
