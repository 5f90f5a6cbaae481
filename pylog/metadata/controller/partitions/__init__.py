"""Decisions on topics and partitions: placement, leaders, ISR, reassignment.

Owns: nothing.
For: `controller`. All decisions are pure functions of an image.
"""
