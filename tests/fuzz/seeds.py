"""Writes a start corpus for each fuzz target: `python tests/fuzz/seeds.py DIRECTORY`."""

import sys
from pathlib import Path

from pylog._native import batch, compress

RECORDS = [
    (None, b"value" * 20, 1_000_000, []),
    (b"key", None, 999_900, [("header", b"content"), ("empty", None)]),
    (b"", b"", -1, []),
    (b"k" * 200, b"v" * 400, 1_000_001, []),
]


def main(directory: Path) -> None:
    for target in ("batch", "inflate"):
        (directory / target).mkdir(parents=True, exist_ok=True)
    plain = b"a plain block of text, text, text " * 40
    for codec in range(5):
        for flags in (0, 1, 0x1E):
            seed = bytes([flags, 3, codec]) + batch.build(RECORDS, codec=codec)
            (directory / "batch" / f"{codec}-{flags}").write_bytes(seed)
        if codec:
            seed = bytes([codec - 1 | 0x80, codec]) + compress.compress(codec, plain)
            (directory / "inflate" / str(codec)).write_bytes(seed)
    bare = bytes([compress.SNAPPY - 1, 0]) + compress.compress(compress.SNAPPY, plain)[20:]
    (directory / "inflate" / "snappy-bare").write_bytes(bare)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
