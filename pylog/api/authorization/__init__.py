"""What each API needs to be allowed, and the responses to what is denied.

Owns: nothing.
For: the table of handlers in `api`.
"""
