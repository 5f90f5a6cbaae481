"""The permissions that each API needs, and the responses to denied requests.

Owns: nothing. For: the table of handlers in `api`.
"""
