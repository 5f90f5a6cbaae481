"""The error for a text that is not a schema.

Owns: nothing.
Invariants: none.
"""

REASON_CHARACTERS_MAX = 1000  # A reason can quote a whole schema.


class SchemaError(ValueError):
    """The text is not a valid schema. The message is part of the registry's answer."""
