"""Our batches read by Kafka, and Kafka's batches, at every level, read by ours."""

import io
import struct
import subprocess
from pathlib import Path

import pytest

from bench.kafka import KafkaMissing, java_command
from pylog._native.records.batch import build, check, crc32c, records, recompress

pytestmark = pytest.mark.kafka

ECHO = Path(__file__).with_name("RecordsEcho.java")
DEFAULT = -(2**31)
NOW = 1_700_000_000_000
RECORDS = [
    (b"key", b"value", NOW, []),
    (None, b"v" * 3000, NOW + 5, [("header", b"content"), ("null", None)]),
    (b"k" * 200, None, NOW - 7, []),
    (b"", b"", NOW + 5, [("", b"")]),
] * 100  # 330 KB: several lz4, snappy and zstd blocks
LEVELS = {
    0: [None],
    1: [None, 1, 2, 3, 4, 9],
    2: [None],
    3: [None, 1, 9, 12, 17],
    4: [None, -5, 1, 19, 22],
}
VALUES = [b"line %d of what Kafka's writer is given\n" % (i * i) * (i % 9) for i in range(3000)]


def echo(requests: bytes) -> io.BytesIO:
    try:
        command = java_command(str(ECHO))
    except KafkaMissing as missing:
        pytest.skip(str(missing))
    done = subprocess.run(command, input=requests, capture_output=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return io.BytesIO(done.stdout)


def take(answers: io.BytesIO, form: str) -> int:
    [value] = struct.unpack(form, answers.read(struct.calcsize(form)))
    return value


def take_bytes(answers: io.BytesIO) -> bytes | None:
    size = take(answers, ">i")
    return None if size < 0 else answers.read(size)


def take_records(answers: io.BytesIO) -> list | None:
    count = take(answers, ">i")
    if count < 0:
        return None
    out = []
    for _ in range(count):
        offset, timestamp = take(answers, ">q"), take(answers, ">q")
        key, value = take_bytes(answers), take_bytes(answers)
        headers = [
            (take_bytes(answers).decode(), take_bytes(answers)) for _ in range(take(answers, ">i"))
        ]
        out.append((offset, timestamp, key, value, headers))
    return out


def test_kafka_reads_our_batches_at_every_level():
    cases = {}
    for codec, levels in LEVELS.items():
        for level in levels:
            cases[codec, level] = build(RECORDS, codec=codec, level=level, base_offset=9)
            cases["again", codec, level] = recompress(cases[codec, level], 4 - codec)
    requests = b"".join(b"R" + struct.pack(">i", len(data)) + data for data in cases.values())
    answers = echo(requests)
    expected = [(9 + i, t, k, v, h) for i, (k, v, t, h) in enumerate(RECORDS)]
    for case in cases:
        assert take_records(answers) == expected, case


def test_we_read_kafkas_batches_at_every_level():
    cases = [
        (codec, DEFAULT if level is None else level)
        for codec, levels in LEVELS.items()
        for level in levels
    ]
    payload = struct.pack(">i", len(VALUES))
    payload += b"".join(struct.pack(">i", len(value)) + value for value in VALUES)
    answers = echo(b"".join(b"W" + struct.pack(">bi", *case) + payload for case in cases))
    for case in cases:
        batch = take_bytes(answers)
        error, summary = check(batch, inflated_bytes_max=1 << 23)
        assert error == 0, (case, summary)
        assert [(o, t, v) for o, t, _, v, _ in records(batch)] == [
            (i, 1000 + i, value) for i, value in enumerate(VALUES)
        ], case


def test_batches_that_kafkas_reader_rejects_are_rejected_here():
    """Damage every byte of a plain and of each compressed payload in turn, with a correct checksum.
    """
    batches = []
    for codec in LEVELS:
        good = bytearray(build(RECORDS[:4], codec=codec))
        for position in range(61, len(good), 1 if codec == 0 else 3):
            damaged = bytearray(good)
            damaged[position] ^= 0x15
            batches.append(mended(damaged))
    requests = b"".join(b"R" + struct.pack(">i", len(data)) + data for data in batches)
    answers = echo(requests)
    for batch in batches:
        theirs = take_records(answers)
        error, _ = check(batch, inflated_bytes_max=1 << 23)
        if theirs is None:
            assert error != 0, batch.hex()
        elif error == 0:
            assert records(batch) == theirs, batch.hex()


def mended(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)
