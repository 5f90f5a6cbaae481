"""Round trip of our bytes through Kafka's message classes, for every message and version."""

import random
import struct
import subprocess
from pathlib import Path

import pytest

from bench.kafka import KafkaMissing, java_command
from pylog.protocol import codec, tables
from tests.protocol.values import every_version, random_message

ECHO = Path(__file__).with_name("MessageEcho.java")
SAMPLES = 6


def java_class(name: str) -> str:
    table = tables.message(name)
    if table.stem.startswith("records_") and table.kind in ("key", "value"):
        coordinator = table.stem.removeprefix("records_")
        return f"org.apache.kafka.coordinator.{coordinator}.generated.{name}"
    if table.kind == "record":
        return f"org.apache.kafka.common.metadata.{name}"
    if name == "QuorumStateData":
        return f"org.apache.kafka.raft.generated.{name}"
    suffix = "Data" if table.kind in ("request", "response", "header") else ""
    return f"org.apache.kafka.common.message.{name}{suffix}"


def echo(cases: list[tuple[str, int, bytes | None]]) -> list[bytes | None]:
    """Return the output of Kafka's classes for the bytes; None: rejected. Bytes None: of a new
    object.
    """
    try:
        command = java_command(str(ECHO))
    except KafkaMissing as missing:
        pytest.skip(str(missing))
    sent = bytearray()
    for name, version, data in cases:
        cls = java_class(name).encode()
        size = -1 if data is None else len(data)
        sent += struct.pack(">H", len(cls)) + cls
        sent += struct.pack(">hi", version, size) + (data or b"")
    done = subprocess.run(command, input=bytes(sent), capture_output=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr.decode()
    answers: list[bytes | None] = []
    place = 0
    for _ in cases:
        (size,) = struct.unpack_from(">i", done.stdout, place)
        place += 4
        answers.append(done.stdout[place : place + size] if size >= 0 else None)
        place += max(size, 0)
    assert place == len(done.stdout)
    return answers


def versions_of_kafka() -> list[tuple[str, int]]:
    """Return (name, version) of everything that the reference has too."""
    return every_version()


def mind_the_gap(value, name: str, struct: str | None = None) -> None:
    """Set to null the values that Kafka's classes drop and ours write:

    an empty array or a struct full of defaults, in a tagged field whose default is null.
    """
    table = tables.message(name)
    for field in table.fields if struct is None else table.structs[struct]:
        inner = getattr(value, field.name)
        if field.tag >= 0 and field.default == "null":
            cls = getattr(codec.message_class(name), field.type) if field.is_struct else None
            if inner == [] or (cls is not None and inner == cls()):
                setattr(value, field.name, None)
        if field.is_struct and inner is not None:
            for element in inner if field.array else [inner]:
                mind_the_gap(element, name, field.type)


def test_random_messages_survive_encoding_byte_for_byte():
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    cases, messages = [], []
    for name, version in versions_of_kafka():
        for _ in range(SAMPLES):
            message = random_message(rng, name, version)
            mind_the_gap(message, name)
            messages.append(message)
            cases.append((name, version, codec.program(name, version).encode(message)))
    wrong = set()
    for message, case, answer in zip(messages, cases, echo(cases), strict=True):
        name, version, data = case
        if answer != data or codec.program(name, version).decode(answer) != message:
            wrong.add((name, version))
    assert not wrong


def test_a_new_object_holds_kafkas_defaults():
    cases = [(name, version, None) for name, version in versions_of_kafka()]
    for (name, version, _), answer in zip(cases, echo(cases), strict=True):
        if answer is not None:
            assert codec.program(name, version).encode(codec.message_class(name)()) == answer, name
            assert codec.program(name, version).decode(answer) == codec.message_class(name)(), name
