"""Decisions on topics and partitions: placement, leaders, ISR, reassignment.

Owns: nothing.
For: `controller`. All are pure functions on an image.
"""
