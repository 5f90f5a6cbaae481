"""Partition logs: append, compaction, flushes, moves between directories, damage.

Owns: log directories, logs, the io pool.
For: all packages above _native.
"""
