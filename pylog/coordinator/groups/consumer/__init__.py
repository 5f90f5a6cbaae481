"""Consumer groups (KIP-848), including their members that use the classic protocol.

Owns: nothing; the groups are in `state`.
For: `groups`.
"""
