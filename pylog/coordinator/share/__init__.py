"""The share coordinator: persistent state of share partitions (KIP-932).

Owns: the state of share partitions.
For: `share` and `api`. The entry point is `service`.
"""
