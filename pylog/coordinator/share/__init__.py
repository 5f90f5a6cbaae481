"""The share coordinator: state of share partitions (KIP-932).

Owns: the state of share partitions.
For: `share` and `api`. `service` is its entry.
"""
