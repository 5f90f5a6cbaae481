"""The group coordinator: groups of every kind, and committed offsets.

Owns: groups and committed offsets.
For: `api`, `share`, `broker` and `monitor`. `service` is its entry.
"""
