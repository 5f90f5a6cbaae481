"""The coordinator runtime: replicated state machines on the partitions of an internal topic.

Owns: journals, timers, snapshots.
For: the other coordinators, `share` and `api`.
"""
