"""How many of something, as a sentence says it.

Owns: nothing.
Invariants: (1) one of a kind is in the singular.
Source: none.
"""


def counted(number: int, singular: str, plural: str = "") -> str:
    """`1 partition`, `2 partitions`. plural: where it is not the singular with an s."""
    # Keeps (1).
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"
