"""The group coordinator: groups of all types, and committed offsets.

Owns: groups and committed offsets.
For: `api`, `share`, `broker` and `monitor`. The entry point is `service`.
"""
