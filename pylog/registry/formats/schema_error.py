"""The error for a text that is not a schema.

Owns: nothing.
Invariants: none.
"""


class SchemaError(ValueError):
    """The text is not a valid schema. The message is part of the registry's answer."""
