"""Client settings: names, aliases, values and durations.

Owns: nothing.
For: the other folders of `client`.
"""
