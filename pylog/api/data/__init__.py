"""Requests on records, producers and transactions, and share fetches.

Owns: nothing.
For: the table of handlers in `api`.
"""
