"""The types of schemas that the registry has, behind one interface.

Owns: nothing.
Invariants: a type that is not in KINDS is refused; stored schemas of other types are still served.
"""

from __future__ import annotations

from collections.abc import Sequence

from pylog.registry.formats import avro, avro_compatibility
from pylog.registry.formats.schema_error import SchemaError

KINDS = ("AVRO",)
Parsed = avro.Schema


def parse(kind: str, text: str, references: Sequence[Parsed], is_strict: bool) -> Parsed:
    """Parse a schema. is_strict: as for a new schema. Raises SchemaError."""
    if kind not in KINDS:
        raise SchemaError(f"schemas of type {kind} are not supported; use one of "
                          f"{', '.join(KINDS)}")
    return avro.parse(text, references, is_strict)


def without_place(reason: str) -> str:
    """Return a reason of differences() without the place in the schema."""
    return avro_compatibility.without_place(reason)


def differences(reader: Parsed, writer: Parsed) -> list[str]:
    """Return why data of `writer` cannot be read with `reader`; [] if it can."""
    return avro_compatibility.differences(reader, writer)
