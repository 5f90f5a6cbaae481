"""State machines on the partitions of an internal topic, for every coordinator.

Owns: journals, timers, snapshots.
For: the other coordinators, `share` and `api`.
"""
