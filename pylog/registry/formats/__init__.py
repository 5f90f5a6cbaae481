"""Types of schemas: how each is parsed, printed, normalised and compared.

Owns: nothing.
Invariants: every function is pure.
"""
