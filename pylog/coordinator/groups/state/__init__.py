"""The groups of one partition: state that all group types share, and their records.

Owns: the groups of one partition.
For: the group types.
"""
