"""Record batches, compression and the search of offset indexes.

Owns: nothing.
For: all packages above _native.
"""
