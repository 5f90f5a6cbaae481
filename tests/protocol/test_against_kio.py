"""The same bytes as kio, an independent codec, in both directions: all its keys and versions."""

import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import UnknownAPIKey, UnknownEntity, load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from pylog.protocol import codec, tables
from pylog.protocol.errors import TABLE
from tests.protocol.values import random_message

# The newest errors may be unknown to kio.
ERROR_CODES = sorted(TABLE.keys() & {int(code) for code in ErrorCode})
KINDS = {"request": EntityType.request, "response": EntityType.response}


def integer(rng, field, low, high):
    """kio converts some integers to enums, durations and dates, and accepts no other values for
    them.
    """
    if field.name.endswith("error_code") or field.name == "error_code":
        return rng.choice(ERROR_CODES)
    if "_ms" in field.name or "timestamp" in field.name or "time" in field.name:
        return rng.choice([0, 1, 1000, min(high, 2**31 - 1)])
    return rng.choice([0, 1, low, high, rng.randint(low, high)])


def kio_class(name: str, version: int):
    """Return kio's class of a message in one version, or None if it has none."""
    table = tables.message(name)
    try:
        module = load_payload_module(table.id, version, KINDS[table.kind])
    except (UnknownAPIKey, UnknownEntity):
        return None
    return getattr(module, name)


NAMES = [
    name for name in tables.names()
    if tables.message(name).kind in KINDS and tables.message(name).versions != tables.NONE
]


def test_kio_has_nearly_everything():
    pairs = [
        (name, version) for name in NAMES
        for version in range(tables.message(name).versions[0], tables.message(name).versions[1] + 1)
    ]
    known = [pair for pair in pairs if kio_class(*pair) is not None]
    assert len(known) > 0.9 * len(pairs), (len(known), len(pairs))


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=4, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(rng=st.randoms(use_true_random=False))
def test_encoding_matches_kio_in_both_directions(name, rng):
    low, high = tables.message(name).versions
    for version in range(low, high + 1):
        theirs = kio_class(name, version)
        if theirs is None:
            continue
        message = random_message(rng, name, version, integer)
        ours = codec.program(name, version).encode(message)
        read, _ = entity_reader(theirs)(ours, 0)
        with io.BytesIO() as buffer:
            entity_writer(theirs)(buffer, read)
            written = buffer.getvalue()
        assert written == ours, version
        assert codec.program(name, version).decode(written) == message, version
