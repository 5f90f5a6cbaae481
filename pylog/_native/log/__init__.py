"""Partition logs and what happens to their files.

Owns: log directories, logs, the io pool.
For: all packages above _native.
"""
