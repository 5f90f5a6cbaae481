"""Writes a seed corpus for each fuzz target: `python tests/fuzz/seeds.py DIRECTORY`."""

import re
import sys
import tempfile
from pathlib import Path

from pylog._native.log import log, replica_move
from pylog._native.records import batch, compress
from tests.native.log.test_log import NOW, make, opened
from tests.native.server.fake_leader import FakeLeader, diverging, row
from tests.wire import raw

RECORDS = [
    (None, b"value" * 20, 1_000_000, []),
    (b"key", None, 999_900, [("header", b"content"), ("empty", None)]),
    (b"", b"", -1, []),
    (b"k" * 200, b"v" * 400, 1_000_001, []),
]


def main(directory: Path) -> None:
    for target in ("batch", "columns", "search", "inflate", "serve", "frames", "log", "granted",
                   "answer"):
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
            document = (None, b'{"b": 1, "a": ["\\u00e9", {"b": 7.0}, true]}', 1_000_000, [])
            seed = bytes([flags | 8, 4, 5, 0x10, flags, 2, 0x82, 3, 40]) + batch.build(
                [*RECORDS, document], codec=codec)
            (directory / "search" / f"{codec}-{flags}").write_bytes(seed)
        if codec:
            seed = bytes([codec - 1 | 0x80, codec]) + compress.compress(codec, plain)
            (directory / "inflate" / str(codec)).write_bytes(seed)
    bare = bytes([compress.SNAPPY - 1, 0]) + compress.compress(compress.SNAPPY, plain)[20:]
    (directory / "inflate" / "snappy-bare").write_bytes(bare)
    requests(directory)
    partitions(directory / "log")
    talks(directory / "granted")
    answers(directory / "answer")


def requests(directory: Path) -> None:
    """Write bodies of Produce and Fetch for fuzz_serve, and whole frames for fuzz_frames."""
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


def answers(directory: Path) -> None:
    """Write a leader's responses for fuzz_answer: a byte for the piece length, then the frame."""
    leader = FakeLeader()
    rows = [(b"i" * 16, row(batch.build(RECORDS), high_watermark=4)),
            (b"j" * 16, row(error_code=6)), (b"j" * 16, diverging(3, 70, index=1))]
    for count in range(len(rows) + 1):
        (directory / str(count)).write_bytes(b"\7" + leader.frame(*rows[:count])[4:])
    leader.close()


def talks(directory: Path) -> None:
    """Write sequences of requests for fuzz_granted: kind, length, body."""
    def part(key, version, body):
        return bytes([key | version << 1 | 0x80]) + len(body).to_bytes(2, "big") + body

    def produce(version, topic, records, acks=-1):
        cells = [(number, records) for number in range(3)]
        return part(raw.PRODUCE, version, raw.produce_body(version, topic, cells, acks=acks))

    def fetch(version, topic, **more):
        cells = [(number, 0, 1000, -1) for number in range(3)]
        return part(raw.FETCH, version, raw.fetch_body(version, [(topic, cells)], **more))

    for codec in range(5):
        records = [batch.build(RECORDS, codec=codec, producer_id=7, producer_epoch=0,
                               base_sequence=sequence) for sequence in (0, 4, 4, 9)]
        bodies = [produce(3, "t", one) for one in records] + [produce(9, "topic", records[0], 1)]
        bodies.append(produce(13, b"i" * 16, batch.build(RECORDS[:1], codec=codec), 0))
        bodies += [fetch(12, "t", session_epoch=0, isolation=1), fetch(13, b"j" * 16)]
        bodies.append(part(raw.FETCH, 12, raw.fetch_body(12, [], session_id=1, session_epoch=1)))
        for flags in (0, 0x11, 0x28, 0x47):
            (directory / f"{codec}-{flags}").write_bytes(bytes([flags]) + b"".join(bodies))


def partitions(directory: Path) -> None:
    """Write files of small logs for fuzz_log: kind, length, bytes."""
    source = Path(__file__).with_name("fuzz_log.c").read_text()
    names = re.findall(r'"([\d\w.-]+)"', source.partition("NAMES[] = {")[2].partition("}")[0])
    for codec in range(5):
        with tempfile.TemporaryDirectory() as root:
            one = opened(log.LogDir(root, 1), config={
                "internal.segment.bytes": 10**4, "index.interval.bytes": 100})
            for sequence in range(10):
                one.append(make(1, codec=codec, producer_id=7, producer_epoch=0,
                                base_sequence=sequence, attributes=batch.TRANSACTIONAL), NOW)
            replica_move.seal(one, NOW)
            one.append(make(3), NOW)
            one.close(NOW)
            # fuzz_log's topic has another id.
            files = {path.name: path.read_bytes() for path in Path(root, "t-0").iterdir()
                     if path.name != "partition.metadata"}
        parts = [bytes([names.index(name) | 0x80]) + len(data).to_bytes(2, "big") + data
                 for name, data in files.items() if name in names]
        aborted = bytes(2) + b"".join(n.to_bytes(8, "big") for n in (7, 2, 5, 6))
        parts.append(bytes([3, 0, 34]) + aborted)
        for flags in (0, 0x08, 0x10, 0x22, 0x46):
            (directory / f"{codec}-{flags}").write_bytes(bytes([flags, 0, 3]) + b"".join(parts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
