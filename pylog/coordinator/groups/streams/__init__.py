"""Streams groups (KIP-1071).

Owns: nothing; the groups are in `state`.
For: `groups`.
"""
