"""Formats a count with its noun.

Owns: nothing.
Invariants: 1 uses the singular.
Source: none.
"""


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return `1 partition`, `2 partitions`. plural: if it is not the singular with an s."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"
