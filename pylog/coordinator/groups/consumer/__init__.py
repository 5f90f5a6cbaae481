"""Consumer groups (KIP-848), and classic members of these groups.

Owns: nothing; the groups are in `state`.
For: `groups`.
"""
