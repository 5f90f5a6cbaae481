"""Groups of one partition: what all kinds of groups keep, and their records.

Owns: the groups of one partition.
For: the kinds of groups.
"""
