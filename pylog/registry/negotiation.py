"""Media types: which one answers have, and which ones bodies may have.

Owns: nothing.
Invariants: an Accept header that names no known type is refused; absent headers mean the default.
Source: RFC 9110, 12.5.1; Confluent's list of types.
"""

from __future__ import annotations

TYPES = ("application/vnd.schemaregistry.v1+json", "application/vnd.schemaregistry+json",
         "application/json")
BODY_TYPES = {*TYPES, "application/octet-stream"}


def answer_type(accept: str) -> str | None:
    """Return the type for an Accept header, None if it accepts none of TYPES."""
    best: tuple[float, int] | None = None
    for part in accept.split(",") if accept.strip() else ["*/*"]:
        name, *parameters = (one.strip() for one in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        for rank, type_ in enumerate(TYPES):
            if weight > 0 and _matches(name.lower(), type_):
                candidate = (weight, -rank)
                best = candidate if best is None or candidate > best else best
    return None if best is None else TYPES[-best[1]]


def _matches(pattern: str, type_: str) -> bool:
    main, _, sub = pattern.partition("/")
    own_main, _, own_sub = type_.partition("/")
    return main == "*" or (main == own_main and sub in ("*", own_sub))


def is_body_type(content_type: str) -> bool:
    """Return True if a body of this type is accepted."""
    name = content_type.partition(";")[0].strip().lower()
    return not name or name in BODY_TYPES
