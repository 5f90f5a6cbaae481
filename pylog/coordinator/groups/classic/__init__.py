"""The classic group protocol.

Owns: nothing.
For: groups.consumer, offsets and shard.
"""
