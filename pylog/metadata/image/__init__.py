"""The metadata image, the records that change it, its snapshots and the loader.

Owns: the newest and the published image, `state.lmdb`.
For: every package above.
"""
