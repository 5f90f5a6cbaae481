"""Writes a start corpus for each fuzz target: `python tests/fuzz/seeds.py DIRECTORY`."""

import sys
from pathlib import Path

from pylog._native import batch, compress
from tests.wire import raw

RECORDS = [
    (None, b"value" * 20, 1_000_000, []),
    (b"key", None, 999_900, [("header", b"content"), ("empty", None)]),
    (b"", b"", -1, []),
    (b"k" * 200, b"v" * 400, 1_000_001, []),
]


def main(directory: Path) -> None:
    for target in ("batch", "columns", "inflate", "serve", "frames"):
        (directory / target).mkdir(parents=True, exist_ok=True)
    plain = b"a plain block of text, text, text " * 40
    for codec in range(5):
        for flags in (0, 1, 0x1E):
            seed = bytes([flags, 3, codec]) + batch.build(RECORDS, codec=codec)
            (directory / "batch" / f"{codec}-{flags}").write_bytes(seed)
            fetched = batch.build(RECORDS, codec=codec) + batch.build(
                RECORDS, base_offset=4, codec=codec, producer_id=1, attributes=batch.TRANSACTIONAL)
            seed = bytes([flags | 8, 3]) + fetched
            (directory / "columns" / f"{codec}-{flags}").write_bytes(seed)
        if codec:
            seed = bytes([codec - 1 | 0x80, codec]) + compress.compress(codec, plain)
            (directory / "inflate" / str(codec)).write_bytes(seed)
    bare = bytes([compress.SNAPPY - 1, 0]) + compress.compress(compress.SNAPPY, plain)[20:]
    (directory / "inflate" / "snappy-bare").write_bytes(bare)
    requests(directory)


def requests(directory: Path) -> None:
    """Bodies of Produce and Fetch as fuzz_serve takes them, whole frames as fuzz_frames does."""
    records = batch.build(RECORDS)
    bodies = [(raw.PRODUCE, version, raw.produce_body(version, topic, [(0, records), (1, None)]))
              for version, topic in ((3, "t"), (9, "topic"), (13, b"i" * 16))]
    bodies += [(raw.FETCH, version, raw.fetch_body(version, [(topic, [(0, 0, 1000, -1)])]))
               for version, topic in ((7, "t"), (12, "topic"), (13, b"i" * 16))]
    for key, version, body in bodies:
        name = f"{key}-{version}"
        (directory / "serve" / name).write_bytes(bytes([key | version << 1]) + body)
        frame = raw.frame(raw.header(key, version) + body)
        (directory / "frames" / name).write_bytes(frame[:4] + b"\0" + frame[4:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
