"""Records that every client must carry through a broker unchanged."""

import random
from dataclasses import dataclass

BASE_MS = 1_760_000_000_000


@dataclass(frozen=True)
class Row:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def corpus(count: int = 60, seed: int = 7) -> list[Row]:
    """Return rows with nulls, empty values, repeated and empty headers, every byte value, a large
    record.
    """
    generator = random.Random(seed)
    rows = [
        Row(None, b"", (), BASE_MS), Row(b"", None, (), BASE_MS + 1), Row(b"", b"", (), BASE_MS),
        Row(b"k", b"v", (("h", b"1"), ("h", b"2"), ("", b""), ("n", None)), BASE_MS - 5000),
        Row(bytes(range(256)), bytes(range(256)) * 4, (("\u00e9\u4e2d", b"\0\xff"),), BASE_MS),
        Row(b"large", generator.randbytes(200_000), (), BASE_MS + 10),
        Row(b"zeros", bytes(300_000), (), BASE_MS + 11),
    ]
    for number in range(count):
        rows.append(Row(
            b"key-%d" % (number % 9), generator.randbytes(generator.randrange(0, 400)),
            (("number", b"%d" % number),) if number % 3 else (),
            BASE_MS + generator.randrange(10_000)))
    return rows
