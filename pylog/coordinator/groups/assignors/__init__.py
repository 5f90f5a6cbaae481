"""Assignors: assign partitions or tasks to members. Pure functions.

Owns: nothing.
For: the group types.
"""
