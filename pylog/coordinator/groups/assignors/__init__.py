"""Assignors: which member gets which partitions or tasks. Pure.

Owns: nothing.
For: the kinds of groups.
"""
