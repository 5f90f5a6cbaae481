"""Helpers for the single event loop: blocking calls, long work in slices, batching.

Owns: nothing.
For: all packages above protocol. Each module is used directly.
"""
