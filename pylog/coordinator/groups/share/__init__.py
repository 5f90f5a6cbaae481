"""Share groups (KIP-932): members, heartbeats and start offsets.

Owns: nothing; the groups are in `state`.
For: `groups`.
"""
