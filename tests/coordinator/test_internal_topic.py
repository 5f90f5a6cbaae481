"""Which partition of an internal topic has a key: Java's hash of its text."""

import pytest

from pylog.coordinator.internal_topic import java_hash, partition_of


def naive(text):
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for unit in (int.from_bytes(data[at:at + 2], "big") for at in range(0, len(data), 2)):
        value = 31 * value + unit
    return (value + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("text, expected", [
    ("", 0), ("a", 97), ("ab", 3105), ("hello", 99162322), ("polygenelubricants", -2**31),
    ("\ud83d", 0xD83D), ("\U0001f600", 0xD83D * 31 + 0xDE00)])
def test_known_hashes(text, expected):
    assert java_hash(text) == naive(text) == expected


def test_any_text_has_javas_hash_and_a_partition(random_source):
    for _ in range(2000):
        text = "".join(chr(random_source.choice((65, 97, 0x7FF, 0xFFFF, 0x10FFFF)))
                       for _ in range(random_source.randrange(12)))
        assert java_hash(text) == naive(text), text
        count = random_source.randrange(1, 60)
        assert partition_of(text, count) == (
            0 if naive(text) == -2**31 else abs(naive(text))) % count
    assert partition_of("polygenelubricants", 50) == 0
