"""Requests on groups and their offsets.

Owns: nothing.
For: the table of handlers in `api`.
"""
